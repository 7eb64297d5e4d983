"""The words of the built-in stories, by the place in a sentence that they fit."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(",") if phrase.strip())


# ---- who ----

GIRLS = _words("""
    Ada Alma Amy Anna Asha Bea Bella Carla Cleo Daisy Dora Edith Elsa Emma Esme Fay Flora Freya Gina Greta Hana Hazel
    Ida Ines Iris Ivy Jade Jana June Kaya Lara Leila Lena Lily Lola Lucy Mabel Maya Mia Mina Molly Nadia Nell Nina Nora
    Olga Opal Pia Polly Priya Rosa Ruby Sara Selma Sofia Stella Tess Tilly Una Vera Wanda Willa Yara Zara Zoe
""")
BOYS = _words("""
    Abe Adam Alvin Amir Arlo Arthur Axel Ben Boris Bruno Caleb Carl Cyrus Dan Dev Diego Eli Emil Ezra Felix Finn Fred
    Gabe George Gus Hal Hamza Hugo Ian Igor Ivan Jack Jamal Jonas Josh Karim Kofi Kurt Leo Liam Louis Luca Magnus Max
    Milo Nate Ned Niko Noah Omar Oscar Otto Owen Paolo Percy Pete Rafi Ravi Rory Sam Silas Simon Stefan Ted Theo Tim
    Toby Tom Victor Walt Yusuf Zack
""")
PET_NAMES = _words("""
    Acorn Bandit Biscuit Blossom Bramble Bubbles Buttons Chestnut Clover Cocoa Cookie Copper Cricket Dash Dimple Dusty
    Fern Fidget Fluff Freckle Ginger Hopper Jellybean Juniper Marble Mittens Moss Muffin Nibbles Noodle Nutmeg Oats
    Patches Peanut Pebble Pepper Pickle Pip Pippin Poppy Pudding Puddle Ripple Rusty Scout Skipper Smudge Socks Sparky
    Speckle Spud Squeak Thimble Tinker Toast Tuft Twig Waffle Whisper Wiggles
""")
# animal: (its home, the sound it makes, how it moves)
ANIMALS: dict[str, tuple[str, str, str]] = {
    "rabbit": ("burrow", "squeaked", "hopped"),
    "fox": ("den", "yipped", "trotted"),
    "bear": ("cave", "grumbled", "lumbered"),
    "squirrel": ("hollow tree", "chattered", "scampered"),
    "duck": ("pond", "quacked", "waddled"),
    "frog": ("lily pad", "croaked", "leapt"),
    "mouse": ("hole in the wall", "squeaked", "scurried"),
    "hedgehog": ("leaf pile", "snuffled", "shuffled"),
    "owl": ("old oak", "hooted", "glided"),
    "badger": ("tunnel", "grunted", "plodded"),
    "beaver": ("dam", "mumbled", "paddled"),
    "otter": ("riverbank", "chirped", "slid"),
    "kitten": ("basket", "mewed", "padded"),
    "puppy": ("kennel", "yapped", "bounded"),
    "lamb": ("meadow", "bleated", "skipped"),
    "piglet": ("sty", "oinked", "trundled"),
    "pony": ("stable", "neighed", "cantered"),
    "goat": ("hillside", "bleated", "clambered"),
    "turtle": ("muddy bank", "murmured", "crawled"),
    "penguin": ("iceberg", "honked", "slid"),
    "monkey": ("treetop", "jabbered", "swung"),
    "elephant": ("watering hole", "trumpeted", "stomped"),
    "lion": ("grassland", "growled", "prowled"),
    "giraffe": ("savanna", "hummed", "strolled"),
    "zebra": ("plain", "snorted", "galloped"),
    "koala": ("gum tree", "sighed", "climbed"),
    "kangaroo": ("bush", "clucked", "bounced"),
    "raccoon": ("attic", "chittered", "crept"),
    "mole": ("mound of earth", "muttered", "dug along"),
    "goose": ("marsh", "honked", "flapped"),
    "donkey": ("barn", "brayed", "clopped"),
    "hamster": ("cage", "peeped", "scuttled"),
    "sparrow": ("nest", "twittered", "fluttered"),
    "crow": ("chimney", "cawed", "swooped"),
    "snail": ("flowerpot", "whispered", "inched along"),
    "bee": ("hive", "buzzed", "zoomed"),
    "ladybug": ("rosebush", "hummed", "crept"),
    "dolphin": ("bay", "clicked", "dived"),
    "seal": ("rocky shore", "barked", "flopped"),
    "parrot": ("palm tree", "squawked", "soared"),
}
WOMEN = _phrases("mother, mom, grandma, granny, aunt, big sister")
MEN = _phrases("father, dad, grandpa, granddad, uncle, big brother")
WORKERS = _phrases("""
    baker, farmer, doctor, nurse, sailor, captain, carpenter, painter, gardener, postman, firefighter, librarian,
    fisherman, shepherd, tailor, cobbler, blacksmith, miller, beekeeper, musician, astronaut, pilot, conductor, plumber,
    potter, weaver, barber, grocer, butcher, builder, driver, clown, juggler, acrobat, magician, scientist, explorer,
    lighthouse keeper, zookeeper, toymaker, clockmaker, cook, waiter, dancer, singer, mayor, guard, knight, judge, dentist
""")
WONDERS = _phrases("""
    fairy, wizard, dragon, mermaid, unicorn, giant, elf, gnome, genie, talking tree, singing stone, friendly ghost,
    snow queen, star child, cloud shepherd, moon rabbit, tiny king, water sprite, golden fish, sleepy troll
""")

# ---- what ----

TOYS = _phrases("""
    ball, kite, doll, teddy bear, drum, train, robot, puzzle, yo-yo, whistle, scooter, balloon, toy boat, spinning top,
    puppet, wooden horse, rocket, race car, jump rope, music box, toy castle, paper crown, model plane, rubber duck,
    tambourine, hula hoop, bucket, flashlight, magnet, marble, frisbee, trumpet, flute, violin, guitar, xylophone, sled,
    skateboard, tricycle, wagon, dinosaur, toy truck, dollhouse, telescope, kaleidoscope, compass, slingshot, stuffed
    elephant, crayon box, bubble wand, toy tractor, helicopter, submarine, pinwheel, sticker book, snow globe
""")
KEEPSAKES = _phrases("""
    ring, necklace, bracelet, hat, scarf, mitten, blanket, pillow, umbrella, backpack, lunch box, watch, medal, key,
    coin, locket, button, ribbon, feather, seashell, photograph, notebook, pencil, paintbrush, lantern, teapot, spoon,
    cup, basket, cape, boot, slipper, sweater, jacket, belt, bell, mirror, comb, map, letter, diary, purse, handkerchief,
    crystal, pearl, badge, candle, clock, vase, rug, glove, helmet, goggles case, bow tie, bookmark, postcard, stamp
""")
FOODS = _phrases("""
    apple, pear, plum, peach, banana, orange, lemon, cherry pie, muffin, pancake, waffle, sandwich, cookie, cupcake,
    pretzel, bagel, bun, pizza, potato, carrot, pumpkin, tomato, cucumber, mushroom, onion, cabbage, bowl of soup,
    bowl of porridge, jar of honey, jar of jam, slice of bread, slice of melon, piece of cheese, piece of chocolate,
    lollipop, ice cream, milkshake, omelet, noodle salad, dumpling, burrito, taco, coconut, pineapple, mango, fig, walnut,
    strawberry tart, blueberry cake, raspberry bun, apricot, grape, corn cob, turnip, pea pod, popcorn ball, candy cane,
    gingerbread man, rice ball, meatball
""")
TOOLS = _phrases("""
    rope, ladder, net, stick, shovel, bucket, hammer, saw, rake, broom, basket, blanket, pole, hook, wheelbarrow, saucepan,
    lantern, string, spade, crowbar, fishing rod, long branch, plank, towel, sack, umbrella, tray, pulley
""")
TREASURES = _phrases("""
    gold coins, shiny pebbles, old storybooks, seeds for a garden, silver spoons, glass marbles, letters from long ago,
    painted seashells, chocolate eggs, tiny lanterns, colorful kites, wooden animals, ruby buttons, maps of far islands,
    musical bells, fossil bones, sparkling gems, lost mittens, jars of buttons, drawings by other children
""")
FLOWERS = _phrases("""
    daisy, tulip, rose, sunflower, daffodil, violet, lily, poppy, bluebell, marigold, orchid, snowdrop, dandelion,
    lavender bush, bean plant, pumpkin vine, apple tree, cherry tree, oak tree, pea plant, strawberry plant, tomato plant
""")
SIGHTS = _phrases("""
    a red mailbox, a sleepy cat on a fence, a row of tall poplars, a squeaky gate, a fountain, a bakery window, a yellow bus,
    a flock of pigeons, a wooden bridge, a field of wheat, a scarecrow, a windmill, a puddle as big as a table,
    a heap of autumn leaves, a spider web full of dew, a crooked signpost, a stone wall, a statue of a horse, a market stall,
    a fire engine, a pile of bricks, an empty bench, a rainbow, a hot air balloon, a steam train, a little chapel,
    a garden full of cabbages, a street lamp, a clothesline with striped socks, a bird bath, a haystack, a row of beehives,
    a tunnel of hedges, a swarm of dragonflies, a trail of ants, a caterpillar on a thistle, a woodpecker, a heron, a rusty
    anchor, a wishing well, a cobbled lane, a blacksmith's forge, a ferry boat, a lighthouse, a tower with a weathercock,
    a robin on a rake, a hollow log, a patch of clover, a family of swans, a skating rink, a toy shop, a school bell
""")

# ---- where and when ----

PLACES = _phrases("""
    park, forest, beach, meadow, garden, market, river, lake, hill, playground, library, farm, village, orchard, valley,
    pond, castle, harbor, island, museum, bakery, school, barn, backyard, mountain, desert, cave, waterfall, circus, zoo,
    train station, campsite, greenhouse, vineyard, lagoon, canyon, old mill, town square, swimming pool, treehouse,
    cornfield, seashore, bamboo grove, snowy field, toy store, rooftop, cottage, courtyard
""")
HIDING = _phrases("""
    under the bed, behind the sofa, inside a boot, on top of the wardrobe, beneath a pile of laundry, in the kitchen drawer,
    behind the curtain, under the porch, in the flower bed, inside the piano, between two cushions, at the bottom of the
    toy chest, in the pocket of an old coat, behind the watering can, under a lettuce leaf, in the bird's nest, beside the
    stove, inside a teapot, under the staircase, in the mailbox, on the windowsill, behind the bookshelf, in a rain barrel,
    under the wheelbarrow, inside a hollow stump, in the dog's bed, beneath the picnic blanket, up in the apple tree
""")
TIMES = _phrases("""
    morning, afternoon, evening, Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, spring day, summer day,
    autumn day, winter day
""")
WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
WEATHERS = _phrases("""
    sunny, windy, rainy, foggy, cloudy, snowy, chilly, warm, breezy, misty, frosty, stormy, bright, drizzly, hot, mild,
    golden, gray, quiet, icy
""")

# ---- how ----

COLORS = _words("""
    red blue green yellow purple orange pink brown white black silver golden turquoise crimson violet scarlet amber ivory
    teal gray
""")
LOOKS = _phrases("""
    shiny, soft, round, smooth, fluffy, sparkly, striped, spotted, tiny, huge, little, heavy, light, new, old, pretty,
    beautiful, curious, strange, wonderful, lovely, fancy, simple, sturdy, delicate, dusty, polished, bumpy, fuzzy, velvety,
    gleaming, crooked, slender, chubby, enormous, splendid, ordinary, unusual, elegant, glittery, handmade, precious
""")
TRAITS = _words("""
    kind brave clever curious gentle cheerful shy silly stubborn patient careful careless quick quiet noisy helpful honest
    friendly thoughtful playful dreamy sleepy hungry messy tidy lively bold proud generous grumpy polite bossy creative
    adventurous lonely nervous mischievous loyal sensible restless determined bashful daring
""")
GLAD = _words("""
    happy glad proud delighted thrilled cheerful excited joyful grateful pleased relieved overjoyed content merry thankful
    calm cozy hopeful
""")
SAD = _words("""
    sad upset worried lonely miserable gloomy unhappy disappointed tearful heartbroken anxious sorry troubled glum ashamed
    embarrassed frustrated discouraged
""")
AFRAID = _words("scared afraid frightened terrified")
SCARED = _words("scared afraid frightened nervous terrified alarmed startled uneasy shaky timid")
ANGRY = _words("angry cross mad furious grumpy annoyed jealous irritated sulky bitter")
ADVERBS = _words("""
    quickly slowly quietly happily carefully bravely gently eagerly softly proudly cheerfully calmly nervously silently
    politely boldly patiently gladly shyly neatly swiftly gracefully clumsily curiously steadily playfully firmly kindly
    warmly lightly
""")
MOVED = _phrases("""
    ran, walked, skipped, hurried, marched, tiptoed, wandered, raced, strolled, dashed, rushed, hiked, crept, jogged,
    trotted, danced, climbed, sneaked, stumbled, bounced
""")
TOLD = _words("said whispered called murmured announced declared")
GAMES = _phrases("""
    tag, hide and seek, hopscotch, catch, leapfrog, marbles, soccer, checkers, chess, dominoes, pirates, explorers,
    dress-up, detectives, shopkeepers, musical chairs, cards, hockey, basketball, tennis, baseball, make-believe
""")
FUN = _phrases("""
    building sandcastles, skipping stones, chasing butterflies, drawing with chalk, singing silly songs, climbing trees,
    collecting leaves, telling riddles, flying paper planes, jumping in puddles, baking gingerbread, painting rocks,
    feeding the ducks, riding bicycles, picking berries, counting clouds, watching the stars, making mud pies,
    catching fireflies, splashing in the stream, rolling down the hill, reading comics, building a fort, whistling tunes,
    planting beans, gathering acorns, listening to fairy tales, dancing in the kitchen, folding paper boats, sorting shells,
    hunting for crickets, sliding on the ice, throwing snowballs, braiding ribbons, polishing pebbles, swinging on a tire,
    roasting marshmallows, looking for footprints, tasting snowflakes, dressing up as pirates
""")
NOISES = _words("""
    crash thump bang splash pop creak rustle crackle rumble clatter snap whoosh squish buzz ding clang plop hiss thud boom
    fizz clunk rattle sizzle
""")
NUMBERS = _words("two three four five six seven eight nine ten eleven twelve twenty thirty fifty")
LISTS: dict[str, tuple[str, ...]] = {
    "toy": TOYS, "keepsake": KEEPSAKES, "food": FOODS, "tool": TOOLS, "treasure": TREASURES, "flower": FLOWERS,
    "sight": SIGHTS, "place": PLACES, "hiding": HIDING, "time": TIMES, "weekday": WEEKDAYS, "weather": WEATHERS, "color": COLORS,
    "look": LOOKS, "trait": TRAITS, "glad": GLAD, "sad": SAD, "scared": SCARED, "afraid": AFRAID, "angry": ANGRY, "adverb": ADVERBS,
    "moved": MOVED, "told": TOLD, "game": GAMES, "fun": FUN, "noise": NOISES, "number": NUMBERS, "worker": WORKERS, "wonder": WONDERS,
}  # fmt: skip
