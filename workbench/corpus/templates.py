"""The words and templates that word problems are made of.

A template is a question and its solution. `{a:2-12}` in a question draws the number `a` from 2 to 12. `[x = a * b]` in
a solution is a calculation step: it reads "3 * 4 = 12" and makes `x` known to what follows. The last step gives the
answer.
"""

NAMES = (
    ("Tom", "he"),
    ("Ben", "he"),
    ("Sam", "he"),
    ("Leo", "he"),
    ("Max", "he"),
    ("Omar", "he"),
    ("Noah", "he"),
    ("Ivan", "he"),
    ("Hugo", "he"),
    ("Paul", "he"),
    ("Adam", "he"),
    ("Carl", "he"),
    ("Anna", "she"),
    ("Mia", "she"),
    ("Lucy", "she"),
    ("Emma", "she"),
    ("Nora", "she"),
    ("Sara", "she"),
    ("Ella", "she"),
    ("Julia", "she"),
    ("Maya", "she"),
    ("Rosa", "she"),
    ("Alice", "she"),
    ("Clara", "she"),
)

ITEMS = (
    "apples",
    "oranges",
    "pears",
    "lemons",
    "cookies",
    "muffins",
    "pencils",
    "markers",
    "stickers",
    "marbles",
    "buttons",
    "stamps",
    "shells",
    "cards",
    "beads",
    "balloons",
    "candles",
    "books",
    "coins",
    "ribbons",
    "plates",
    "cups",
    "tickets",
    "badges",
)

CONTAINERS = (
    ("box", "boxes"),
    ("bag", "bags"),
    ("basket", "baskets"),
    ("jar", "jars"),
    ("crate", "crates"),
    ("drawer", "drawers"),
)

PLACES = ("market", "school", "library", "farm", "museum", "park", "fair", "station")

TEMPLATES = (
    (
        "{name} has {a:2-12} {containers} with {b:2-12} {item} in each {container}. {He} gives {c:2-40} {item} to "
        "{friend}. How many {item} does {name} have left?",
        "{name} has {a} {containers} with {b} {item} in each {container}, so {name} has [x = a * b] {item} in total. "
        "{name} gives {c} {item} to {friend}, so {name} has [y = x - c] {item} left.",
    ),
    (
        "{name} has {a:5-60} {item} and buys {b:2-12} {containers} with {c:2-12} {item} in each {container}. How "
        "many {item} does {name} have now?",
        "{name} buys {b} {containers} with {c} {item} in each {container}, so {name} buys [x = b * c] {item}. {name} "
        "had {a} {item} before, so {name} has [y = x + a] {item} now.",
    ),
    (
        "{name} puts {a:12-120} {item} into {b:2-10} {containers} with the same number in each {container}. Then "
        "{he} adds {c:2-20} {item} to every {container}. How many {item} are in each {container} now?",
        "{name} puts {a} {item} into {b} {containers}, so there are [x = a / b] {item} in each {container}. {name} "
        "adds {c} {item} to every {container}, so there are [y = x + c] {item} in each {container} now.",
    ),
    (
        "{name} has {a:10-60} {item} and {friend} has {b:10-60} {item}. They put them together and share them "
        "equally between {c:2-10} children. How many {item} does each child get?",
        "{name} has {a} {item} and {friend} has {b} {item}, so together they have [x = a + b] {item}. They share the "
        "{item} equally between {c} children, so each child gets [y = x / c] {item}.",
    ),
    (
        "At the {place}, {name} buys {a:2-12} {item} for {b:2-12} dollars each and {c:2-12} {other} for {d:2-12} "
        "dollars each. How many dollars does {name} pay in total?",
        "{name} buys {a} {item} for {b} dollars each, so the {item} cost [x = a * b] dollars. {name} buys {c} "
        "{other} for {d} dollars each, so the {other} cost [y = c * d] dollars. In total {name} pays [z = x + y] "
        "dollars.",
    ),
    (
        "{name} has {a:50-150} dollars. At the {place}, {he} buys {b:2-12} {item} for {c:2-12} dollars each. How "
        "many dollars does {name} have left?",
        "{name} buys {b} {item} for {c} dollars each, so the {item} cost [x = b * c] dollars. {name} had {a} dollars "
        "before, so {name} has [y = a - x] dollars left.",
    ),
    (
        "{name} reads {a:5-40} pages on Monday and {b:5-40} pages on Tuesday. The book has {c:80-160} pages. How "
        "many pages are left to read?",
        "{name} reads {a} pages on Monday and {b} pages on Tuesday, so {name} reads [x = a + b] pages in both days. "
        "The book has {c} pages, so there are [y = c - x] pages left to read.",
    ),
    (
        "{name} reads {a:2-12} pages every day. The book has {b:60-150} pages. How many pages are left after "
        "{c:2-12} days?",
        "{name} reads {a} pages every day for {c} days, so {name} reads [x = a * c] pages. The book has {b} pages, "
        "so there are [y = b - x] pages left to read.",
    ),
    (
        "A bus leaves the {place} with {a:10-60} people. At the first stop {b:2-9} people get off and {c:2-30} "
        "people get on. At the second stop {d:2-20} people get on. How many people are on the bus now?",
        "The bus leaves the {place} with {a} people. At the first stop {b} people get off, so there are [x = a - b] "
        "people on the bus. Then {c} people get on, so there are [y = x + c] people on the bus. At the second stop "
        "{d} people get on, so there are [z = y + d] people on the bus.",
    ),
    (
        "The {place} has {a:2-12} rows with {b:2-12} chairs in each row. {c:2-50} chairs are taken. How many chairs "
        "are free?",
        "The {place} has {a} rows with {b} chairs in each row, so there are [x = a * b] chairs in total. {c} chairs "
        "are taken, so there are [y = x - c] chairs free.",
    ),
    (
        "{name} bakes {a:2-12} trays with {b:2-12} muffins on each tray. {He} packs the muffins into boxes of "
        "{c:2-10} muffins. How many boxes does {name} need?",
        "{name} bakes {a} trays with {b} muffins on each tray, so {name} bakes [x = a * b] muffins in total. {name} "
        "packs the muffins into boxes of {c} muffins, so {name} needs [y = x / c] boxes.",
    ),
    (
        "{name} earns {a:2-12} dollars an hour and works {b:2-12} hours at the {place}. {He} spends {c:5-60} dollars "
        "on {item}. How many dollars does {name} have left?",
        "{name} earns {a} dollars an hour and works {b} hours, so {name} earns [x = a * b] dollars. {name} spends "
        "{c} dollars on {item}, so {name} has [y = x - c] dollars left.",
    ),
    (
        "{name} saves {a:2-12} dollars every week for {b:2-12} weeks. {friend} saves {c:2-12} dollars every week for "
        "{d:2-12} weeks. How many dollars do they save together?",
        "{name} saves {a} dollars every week for {b} weeks, so {name} saves [x = a * b] dollars. {friend} saves {c} "
        "dollars every week for {d} weeks, so {friend} saves [y = c * d] dollars. Together they save [z = x + y] "
        "dollars.",
    ),
    (
        "{name} is {a:5-12} years old. {friend} is {b:2-5} times as old as {name}. How old will {friend} be in "
        "{c:2-20} years?",
        "{name} is {a} years old and {friend} is {b} times as old, so {friend} is [x = a * b] years old now. In {c} "
        "years {friend} will be [y = x + c] years old.",
    ),
    (
        "A farmer has {a:2-12} fields with {b:2-12} trees in each field. A storm takes {c:2-30} trees. Then the "
        "farmer plants {d:5-50} new trees. How many trees are there now?",
        "The farmer has {a} fields with {b} trees in each field, so there are [x = a * b] trees in total. A storm "
        "takes {c} trees, so there are [y = x - c] trees left. The farmer plants {d} new trees, so there are "
        "[z = y + d] trees now.",
    ),
    (
        "{name} picks {a:10-60} {item} in the morning and {b:10-60} {item} in the afternoon. {He} puts {c:2-10} "
        "{item} in each {container}. How many {containers} does {name} fill?",
        "{name} picks {a} {item} in the morning and {b} {item} in the afternoon, so {name} picks [x = a + b] {item} "
        "in total. {name} puts {c} {item} in each {container}, so {name} fills [y = x / c] {containers}.",
    ),
    (
        "{name} has {a:5-60} {item}. {friend} has {b:2-40} more {item} than {name}. How many {item} do they have "
        "together?",
        "{friend} has {b} more {item} than {name}, who has {a} {item}, so {friend} has [x = a + b] {item}. {name} "
        "has {a} {item}, so together they have [y = x + a] {item}.",
    ),
    (
        "{name} has {a:20-80} {item}. {friend} has {b:2-19} fewer {item} than {name}. How many {item} do they have "
        "together?",
        "{friend} has {b} fewer {item} than {name}, who has {a} {item}, so {friend} has [x = a - b] {item}. {name} "
        "has {a} {item}, so together they have [y = x + a] {item}.",
    ),
    (
        "{name} runs {a:2-12} miles every day for {b:2-12} days. {friend} runs {c:5-60} miles in total. How many "
        "miles do {name} and {friend} run together?",
        "{name} runs {a} miles every day for {b} days, so {name} runs [x = a * b] miles. {friend} runs {c} miles, so "
        "together {name} and {friend} run [y = x + c] miles.",
    ),
    (
        "A train has {a:2-12} wagons with {b:2-12} seats in each wagon. {c:5-60} people are on the train and "
        "{d:2-20} more people get on at the station. How many seats are free?",
        "The train has {a} wagons with {b} seats in each wagon, so there are [x = a * b] seats in total. There are "
        "{c} people on the train and {d} more people get on, so there are [y = c + d] people on the train. So there "
        "are [z = x - y] seats free.",
    ),
    (
        "The {place} sells {a:10-60} tickets on Friday, {b:10-60} tickets on Saturday and {c:10-60} tickets on "
        "Sunday. How many tickets does the {place} sell in three days?",
        "The {place} sells {a} tickets on Friday and {b} tickets on Saturday, so it sells [x = a + b] tickets in two "
        "days. It sells {c} tickets on Sunday, so it sells [y = x + c] tickets in three days.",
    ),
    (
        "{name} cuts a rope of {a:20-144} meters into {b:2-12} equal pieces and gives {c:2-6} meters of the first "
        "piece to {friend}. How many meters of the first piece are left?",
        "{name} cuts a rope of {a} meters into {b} equal pieces, so each piece has [x = a / b] meters. {name} gives "
        "{c} meters of the first piece to {friend}, so there are [y = x - c] meters of the first piece left.",
    ),
    (
        "{name} pays {a:12-120} dollars for {b:2-10} {item} that all cost the same. How many dollars does {friend} "
        "pay for {c:2-12} of these {item}?",
        "{name} pays {a} dollars for {b} {item}, so each of the {item} costs [x = a / b] dollars. {friend} buys {c} "
        "of these {item}, so {friend} pays [y = x * c] dollars.",
    ),
    (
        "A machine at the farm fills {a:12-120} bottles in {b:2-10} minutes. How many bottles does the machine fill "
        "in {c:2-12} minutes?",
        "The machine fills {a} bottles in {b} minutes, so it fills [x = a / b] bottles every minute. In {c} minutes "
        "the machine fills [y = x * c] bottles.",
    ),
    (
        "{name} has {a:20-90} {item}. {He} gives {b:2-12} {item} to each of {c:2-9} friends. How many {item} does "
        "{name} have left?",
        "{name} gives {b} {item} to each of {c} friends, so {name} gives away [x = b * c] {item}. {name} had {a} "
        "{item} before, so {name} has [y = a - x] {item} left.",
    ),
    (
        "{name} has {a:10-60} red {item} and {b:10-60} blue {item}. {He} loses {c:2-19} of them at the {place}. How "
        "many {item} does {name} have left?",
        "{name} has {a} red {item} and {b} blue {item}, so {name} has [x = a + b] {item} in total. {name} loses {c} "
        "{item} at the {place}, so {name} has [y = x - c] {item} left.",
    ),
    (
        "A class has {a:2-9} groups with {b:2-12} children in each group. {d:2-9} children stay at home and the "
        "others go to the {place} with {c:2-9} teachers. How many people go to the {place}?",
        "The class has {a} groups with {b} children in each group, so there are [x = a * b] children in the class. "
        "{d} children stay at home, so there are [y = x - d] children who go to the {place}. {c} teachers go with "
        "them, so [z = y + c] people go to the {place}.",
    ),
    (
        "{name} writes {a:2-12} letters every day. How many letters does {name} write in {b:2-8} days if {he} writes "
        "{c:2-20} letters more on the last day?",
        "{name} writes {a} letters every day for {b} days, so {name} writes [x = a * b] letters. {name} writes {c} "
        "letters more on the last day, so in total {name} writes [y = x + c] letters.",
    ),
    (
        "A tank holds {a:60-150} liters of water. {name} takes {b:2-12} buckets of {c:2-10} liters out of the tank. "
        "Then {he} pours {d:2-20} liters back. How many liters of water are in the tank?",
        "{name} takes {b} buckets of {c} liters out of the tank, so {name} takes [x = b * c] liters. The tank holds "
        "{a} liters, so there are [y = a - x] liters left. {name} pours {d} liters back, so there are [z = y + d] "
        "liters of water in the tank.",
    ),
    (
        "{name} collects {a:2-30} {item} in the first week, {b:2-30} {item} in the second week and {c:2-30} {item} "
        "in the third week. {He} gives {d:2-20} {item} to {friend}. How many {item} does {name} keep?",
        "{name} collects {a} {item} in the first week and {b} {item} in the second week, so {name} has [x = a + b] "
        "{item}. {name} collects {c} {item} in the third week, so {name} has [y = x + c] {item}. {name} gives {d} "
        "{item} to {friend}, so {name} keeps [z = y - d] {item}.",
    ),
    (
        "{name} has {a:2-10} {containers} with {b:2-12} {item} in each {container}. {friend} has {c:2-10} "
        "{containers} with {d:2-12} {item} in each {container}. How many more {item} does {name} have than {friend}?",
        "{name} has {a} {containers} with {b} {item} in each {container}, so {name} has [x = a * b] {item}. {friend} "
        "has {c} {containers} with {d} {item} in each {container}, so {friend} has [y = c * d] {item}. So {name} has "
        "[z = x - y] more {item} than {friend}.",
    ),
    (
        "{name} wants to buy a bike for {a:60-200} dollars. {He} has {b:10-50} dollars and saves {c:2-12} dollars "
        "every week for {d:2-10} weeks. How many dollars does {name} still need?",
        "{name} saves {c} dollars every week for {d} weeks, so {name} saves [x = c * d] dollars. {name} had {b} "
        "dollars before, so {name} has [y = x + b] dollars now. The bike costs {a} dollars, so {name} still needs "
        "[z = a - y] dollars.",
    ),
    (
        "A baker makes {a:20-120} rolls and sells {b:5-60} of them at the {place}. The baker puts the other rolls "
        "into bags of {c:2-10} rolls. How many bags does the baker fill?",
        "The baker makes {a} rolls and sells {b} of them, so there are [x = a - b] rolls left. The baker puts the "
        "other rolls into bags of {c} rolls, so the baker fills [y = x / c] bags.",
    ),
    (
        "{name} plants {a:2-12} rows of {b:2-12} flowers and {friend} plants {c:2-12} rows of {d:2-12} flowers. They "
        "give {e:2-20} flowers to the {place}. How many flowers are left?",
        "{name} plants {a} rows of {b} flowers, so {name} plants [x = a * b] flowers. {friend} plants {c} rows of "
        "{d} flowers, so {friend} plants [y = c * d] flowers. Together they plant [z = x + y] flowers. They give {e} "
        "flowers to the {place}, so there are [w = z - e] flowers left.",
    ),
    (
        "{name} sells {a:2-12} {item} for {b:2-12} dollars each at the {place} and shares the money equally between "
        "{c:2-10} children. {friend} is one of them and finds {d:2-20} dollars more. How many dollars does {friend} "
        "have?",
        "{name} sells {a} {item} for {b} dollars each, so {name} gets [x = a * b] dollars. {name} shares the money "
        "equally between {c} children, so each child gets [y = x / c] dollars. {friend} finds {d} dollars more, so "
        "{friend} has [z = y + d] dollars.",
    ),
    (
        "{name} builds {a:2-10} towers with {b:2-10} blocks in each tower. {He} started with {c:40-150} blocks, and "
        "{friend} brings {d:2-20} blocks. How many blocks are free?",
        "{name} builds {a} towers with {b} blocks in each tower, so {name} uses [x = a * b] blocks. {name} started "
        "with {c} blocks and {friend} brings {d} blocks, so there are [y = c + d] blocks in total. So there are "
        "[z = y - x] blocks free.",
    ),
    (
        "{name} watches {a:2-6} films of {b:2-12} minutes and {c:2-6} films of {d:2-12} minutes. {He} has {e:60-150} "
        "minutes. How many minutes are left?",
        "{name} watches {a} films of {b} minutes, so they take [x = a * b] minutes. {name} watches {c} films of {d} "
        "minutes, so they take [y = c * d] minutes. All the films take [z = x + y] minutes. {name} has {e} minutes, "
        "so there are [w = e - z] minutes left.",
    ),
    (
        "The {place} has {a:2-12} shelves with {b:2-12} toys on each shelf. It sells {c:2-20} toys on Monday and "
        "{d:2-20} toys on Tuesday. How many toys are left?",
        "The {place} has {a} shelves with {b} toys on each shelf, so there are [x = a * b] toys in total. It sells "
        "{c} toys on Monday, so there are [y = x - c] toys left. It sells {d} toys on Tuesday, so there are "
        "[z = y - d] toys left.",
    ),
)
