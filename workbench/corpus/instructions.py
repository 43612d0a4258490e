"""General instructions, generated from a seed: requests that a chat model gets, without their answers.

They give a corpus breadth where no data set of instructions can be reached. A template names the kinds of words that
fill it; the hash of the filled text decides its split, as for word problems.
"""

import random
import re

from workbench.corpus.problems import Split, question_split


def _phrases(text: str) -> tuple[str, ...]:
    """Phrases between semicolons, whatever the line breaks."""
    return tuple(" ".join(phrase.split()) for phrase in text.split(";"))


TOPICS = _phrases(
    """photosynthesis; inflation; black holes; the French Revolution; vaccines; recursion; plate tectonics; chess
    openings; sourdough bread; electric cars; the water cycle; gravity; probability; the Roman Empire; coral reefs;
    machine translation; solar panels; public libraries; the human heart; jazz music; volcanoes; renewable energy;
    the stock market; honey bees; medieval castles; online privacy; meditation; the Olympic Games; rainforests;
    antibiotics; the printing press; ocean currents; DNA; supply and demand; time zones; concrete; whales; glaciers;
    encryption; the immune system; urban gardening; compound interest; the periodic table; cloud computing; migration of
    birds; earthquakes; the Silk Road; dreams; batteries; tea"""
)
AUDIENCES = (
    "a ten-year-old",
    "a beginner",
    "a busy manager",
    "a university student",
    "my grandmother",
    "a journalist",
    "someone who doubts that it matters",
    "a class of teenagers",
)
TASKS = _phrases(
    """reverses a string; finds the largest number in a list; counts the words of a text; checks whether a number is
    prime; removes duplicates from a list; sorts a list of names by their last letter; converts Celsius to Fahrenheit;
    adds up the digits of a number; merges two sorted lists; checks whether a text is a palindrome; finds the second
    smallest number in a list; counts the vowels of a word; returns the first n Fibonacci numbers; groups words by their
    length; reads a CSV line into a dictionary; computes the average of a list; rotates a list by k places; finds all
    pairs of numbers with a given sum"""
)
LANGUAGES = ("Python", "Python", "JavaScript", "Java", "C", "Go")
OCCASIONS = _phrases(
    """moving to a new city; a job interview; a first day at school; a long flight; a birthday party on a small budget;
    a week without internet; learning a language; running a first marathon; a difficult talk with a friend; a rainy
    weekend with children; starting a garden; writing a thesis; a power cut; sharing a flat; a camping trip; giving a
    speech; adopting a dog; quitting coffee; a family reunion; saving for a bicycle"""
)
HEROES = (
    "a lighthouse keeper",
    "a robot that is afraid of water",
    "two rival bakers",
    "a retired detective",
    "a girl who can hear plants",
    "a lost astronaut",
    "an old map maker",
    "a taxi driver on a snowy night",
    "a clumsy wizard",
    "a fox and a hen",
)
STYLES = ("a short story", "a poem of eight lines", "a dialogue", "a diary entry", "a letter", "a fable with a moral")
NUMBERS = ("two", "three", "four", "five", "six", "seven")
LENGTHS = ("in one paragraph", "in three sentences", "in about 100 words", "step by step", "with an example")

WORDS = {
    "topic": TOPICS,
    "other": TOPICS,
    "audience": AUDIENCES,
    "task": TASKS,
    "language": LANGUAGES,
    "occasion": OCCASIONS,
    "hero": HEROES,
    "style": STYLES,
    "number": NUMBERS,
    "length": LENGTHS,
}

INSTRUCTIONS = (
    "Explain {topic} to {audience} {length}.",
    "Tell me about {topic} {length}.",
    "List {number} surprising facts about {topic}.",
    "Compare {topic} and {other} {length}.",
    "Give {number} reasons to learn more about {topic}.",
    "Write {style} about {hero}.",
    "Write {style} about {hero} and {topic}.",
    "Write a {language} function that {task}, and explain it {length}.",
    "How would you test a {language} function that {task}?",
    "Give me {number} tips for {occasion}.",
    "Make a plan in {number} steps for {occasion}.",
    "Write an email to a friend about {occasion}, {length}.",
    "What are common mistakes when it comes to {topic}? Name {number}.",
    "Suggest {number} titles for an article about {topic} and describe the best one.",
    "What questions should one ask an expert on {topic}? Name {number}.",
    "I have to speak about {topic} to {audience}. Write an opening {length}.",
    "Summarise what is known about {topic} {length}.",
    "Is there a link between {topic} and {other}? Discuss it {length}.",
)


def generate_instructions(split: Split, seed: int, count: int) -> list[str]:
    """Generates `count` instructions of one split, none twice; the same arguments give the same list."""
    rng = random.Random(f"instructions {split} {seed}")
    instructions: dict[str, None] = {}
    while len(instructions) < count:
        template = rng.choice(INSTRUCTIONS)
        words = {kind: rng.choice(WORDS[kind]) for kind in re.findall(r"\{(\w+)\}", template)}
        text = template.format(**words)
        of_itself = "other" in words and words["other"] == words["topic"]
        if not of_itself and question_split(text) == split:
            instructions.setdefault(text)
    return list(instructions)
