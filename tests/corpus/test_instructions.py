import re

from workbench.corpus.instructions import INSTRUCTIONS, WORDS, generate_instructions


def test_a_smaller_count_is_a_prefix():
    assert generate_instructions("train", 1, 60)[:20] == generate_instructions("train", 1, 20)


def test_every_template_and_every_word_is_used():
    text = "\n".join(generate_instructions("train", 0, 6000))
    assert not re.search(r"[{}]|  ", text)
    for words in WORDS.values():
        assert all(word in text for word in words)
    for template in INSTRUCTIONS:
        pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(template))
        assert re.search(f"^{pattern}$", text, re.MULTILINE), template


def test_two_topics_differ():
    text = "\n".join(generate_instructions("train", 0, 3000))
    links = re.findall(r"^Is there a link between (.+?) and (.+?)\?", text, re.MULTILINE)
    assert links
    assert all(one != other for one, other in links)
