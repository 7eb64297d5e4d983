"""The plots of the built-in stories, as templates.

    [one|another]   one of the alternatives, which may nest
    {hero} {elder}  a fact of this story; {He} writes it with a capital, {a thing} with an article
    {f.he}          the pronoun of the friend (f), the elder (e) or the other character (o); {he} is the hero's
    {+look}         a word from the list of that name in `lm.stories.lexicon`, not used before in this story

A plot is a list of paragraphs. Its table gives further facts that belong together: one row for each story.
"""

from __future__ import annotations

from dataclasses import dataclass

# fmt: off


@dataclass(frozen=True)
class Plot:
    """One kind of story."""

    lessons: tuple[str, ...]
    columns: tuple[str, ...]  # names of the facts that a row of the table sets
    table: tuple[tuple[str, ...], ...]
    paragraphs: tuple[str, ...]
    closings: tuple[str, ...]


OPENING = (
    "[Once upon a time|Long ago|Once|A long time ago], [there was|there lived] {a trait} {kind} named {hero}. "
    "[{He} lived near {a place} with {his} {elder}.|{He} loved {+fun} and {+fun}.|{Hero} was {+trait} and {+trait}, "
    "and everyone [liked|knew] {him}.|Every {+time} {he} went to the {place}.|]",
    "One {+weather} {+time}, {a trait} {kind} named {hero} [went|{+moved}] to the {place}. [{He} was {+fun} when "
    "something happened.|{He} felt {+glad}, for {he} liked {+fun} best of all.|On the way {he} passed {+sight} and {+sight}.|]",
    "{Hero} was {a trait} {kind} who lived [near|next to|not far from] {a place}. [{He} liked {+fun}.|{He} had "
    "{+number} favorite games, and the best of them was {+game}.|{His} best friend was {friend}.|]",
    "There once was {a kind} called {hero}. {He} was [very|quite|always|often] {+trait}. [Most of all {he} loved "
    "{+fun}.|In the {place} {he} knew every corner.|{He} and {his} {elder} shared {a look} little house by the {place}.|]",
)
CLOSING = (
    "[From that day on|After that|Ever since], {hero} [knew|remembered] that {lesson}.",
    "[That night|That evening], {hero} went to bed feeling {+glad}. [{He} dreamed of {+fun}.|{He} could hardly wait for tomorrow.|]",
    "{Hero} and {friend} [laughed|smiled|cheered] and [went home|{+moved} home] together. [The end.|They stayed friends forever.|]",
    "And {hero} [never forgot|always remembered] that {lesson}. [The end.|]",
    '"[Today|This] was [a wonderful day|the best day of all]," {+told} {hero}, and {his} {elder} agreed.',
    "They all ate {a food} together and felt {+glad}. [The end.|]",
)

LOST = Plot(
    ("friends are worth more than toys", "four eyes see more than two", "it is fine to ask for help"),
    ("thing",),
    (),  # any toy or keepsake: see `lm.stories.write`
    (
        "{Hero} had {a look} {color} {thing}. It was a [gift|present] from {his} {elder}, and {he} [took|carried] it "
        "[everywhere|wherever {he} went]. [At night it lay beside {his} pillow.|No other {thing} was so {+look}.|{He} even gave it a name.|]",
        "But one {+weather} {+time} the {thing} was gone! {Hero} felt {+sad}. [{He} looked {+hiding}.|{He} searched {+hiding} and {+hiding}.] "
        '[Nothing was there but {a look} {+keepsake}.|There was only dust.|It was not there.] "[Oh no|Oh dear]! '
        'Where is my {color} {thing}?" {he} [cried|said|asked|sobbed].',
        '{Friend} heard {him} and came over. "[Do not cry|Do not worry|Cheer up]," {f.he} {+told}. "[Let us look together.|'
        'Four eyes see more than two.|Where did you have it last?]" {Hero} [thought hard|wiped {his} eyes|took a deep breath]. '
        '"I was {+fun} at the {place}," {he} [said|answered]. So they {+moved} to the {place}. They passed {+sight} and {+sight}.',
        "[They looked for a long time.|They peeked behind every bush.|They asked {a worker}, who shook {o.his} head.] Then "
        "{friend} heard a {+noise}. [{Hero} bent down and looked.|They both {+moved} closer.] There, {+hiding}, was [something {color}|"
        'the {color} {thing}]! [{A animal} had taken it for a toy.|{A animal} was sleeping on it.|The wind had carried it there.] '
        '"[We found it|There it is|Hooray]!" [shouted|cheered] {friend}.',
        "{Hero} hugged the {thing} and then {he} hugged {friend}. \"[Thank you|You are a true friend]. [I could not have found "
        "it alone.|Would you like to play with it too?]\" [They played {+game} until the sun went down.|{Friend} felt {+glad}.]",
    ),
    CLOSING,
)

SKILL = Plot(
    ("practice makes things easier", "giving up is never the only way", "everyone is a beginner once", "patience is a kind of magic"),
    ("skill", "doing", "fail", "tip", "success"),
    (
        ("ride a bicycle", "riding", "the bicycle wobbled and tipped into the hedge", "Look far ahead and keep pedaling", "rode all the way around the block"),
        ("swim", "swimming", "{he} swallowed water and splashed back to the edge", "Kick with both legs and breathe slowly", "swam across the whole pool"),
        ("whistle", "whistling", "only air came out", "Wet your lips and make a small round mouth", "whistled a tune so clear that the birds answered"),
        ("tie {his} shoes", "tying", "the laces turned into one big knot", "Make two loops like the ears of a rabbit", "tied a perfect bow on each shoe"),
        ("bake bread", "baking", "the dough stayed flat as a plate", "Let it rest in a warm corner before it goes in the oven", "pulled a tall crusty loaf from the oven"),
        ("skate", "skating", "{his} feet slipped and {he} sat down on the ice", "Bend your knees and push to the side", "glided over the ice and made a turn"),
        ("read", "reading", "the letters seemed to dance on the page", "Say each sound slowly and put your finger under the word", "read a whole page about a whale aloud"),
        ("play the violin", "playing", "it screeched like an angry gull", "Hold the bow lightly, as if it were a feather", "played a lullaby without a single wrong note"),
        ("juggle", "juggling", "all the beanbags landed on {his} head", "Start with one and throw it only as high as your nose", "kept three beanbags in the air"),
        ("fly a kite", "flying", "the kite dived into the mud", "Wait for the wind and let the string out bit by bit", "sent the kite higher than the church tower"),
        ("paint a portrait", "painting", "the nose looked like a potato", "Look at the face more than at the paper", "painted a portrait that looked ready to speak"),
        ("climb the rope", "climbing", "{his} arms grew tired halfway up", "Use your legs and rest at every knot", "touched the beam at the very top"),
        ("count to one hundred", "counting", "{he} always mixed up the forties and the sixties", "Count ten pebbles and begin a new heap", "counted one hundred acorns without a mistake"),
        ("dance", "dancing", "{he} tripped over {his} own toes", "Listen to the drum and let your feet follow it", "twirled through the whole song"),
        ("catch a fish", "fishing", "the line got caught on a root", "Sit still and watch the float", "lifted a silver trout out of the stream and set it free again"),
        ("do a cartwheel", "tumbling", "{he} rolled over like a barrel", "Put your hands down one after the other and look at the grass", "made three cartwheels in a row"),
        ("sew", "sewing", "the thread slipped out of the needle", "Tie a knot at the end and take tiny stitches", "sewed a patch on {his} old jacket"),
        ("throw far", "throwing", "the ball dropped right in front of {him}", "Step forward and swing your whole arm", "threw the ball over the barn roof"),
        ("spell {his} name", "spelling", "one letter always faced the wrong way", "Draw it in sand first, big and slow", "wrote {his} name on the gate for everyone to see"),
        ("sing in tune", "singing", "{his} voice cracked on the high note", "Hum it softly before you open your mouth", "sang the solo at the spring concert"),
        ("pour tea", "pouring", "half of it ended up on the tablecloth", "Hold the lid and tilt the pot slowly", "filled six cups without spilling a drop"),
        ("row a boat", "rowing", "the boat went around in circles", "Pull both oars with the same strength", "rowed straight to the island and back"),
    ),
    (
        "More than anything, {hero} wanted to [learn to|be able to] {skill}. [{Friend} could do it already.|All the others could.|"
        "{He} watched the big {kinds} and sighed.] \"[I want to {skill} too|One day I will {skill}],\" {he} {+told}.",
        "So {he} tried. But {fail}. {He} tried [again|a second time|once more], and again {fail}. [\"I will never learn it!\" {he} cried.|"
        "{Hero} felt {+sad}.|{He} stamped {his} foot and felt {+angry}.] [\"Maybe {doing} is not for me,\" {he} mumbled.|]",
        "[Just then|A little later], {his} {elder} [came by|sat down beside {him}]. \"[It takes time|Nobody can do it on the first day|I once felt the same],\" {e.he} {+told}. "
        "\"{tip}. [And do not give up.|Try it {+adverb}.|Then try once more.]\" {Hero} nodded.",
        "Every {+time} {hero} practiced {doing}. [Sometimes it went well and sometimes it did not.|It was hard, and {he} got tired.|{Friend} came to watch and to clap.] "
        "[After {+number} days|At last|Then one {+weather} {+time}], {he} took a deep breath and remembered: \"{tip}.\" And {he} {success}!",
        "\"[I did it|Look at me|Did you see that]!\" shouted {hero}. {His} {elder} [clapped|smiled] and {friend} jumped up and down. {Hero} felt {+glad}. "
        "[{He} gave {friend} {a food} to celebrate.|\"Now teach me too,\" begged {friend}, and {hero} did.|They celebrated with {a food}.]",
    ),
    CLOSING,
)

FEAR = Plot(
    ("being brave does not mean being without fear", "things look smaller from close by", "it is fine to ask for help"),
    ("fear", "seems", "truth"),
    (
        ("the dark", "a tall shape with long arms stood in the corner", "it was only {his} coat on a hook"),
        ("thunder", "something roared above the roof as if the sky were breaking", "it was only the clouds bumping together far away"),
        ("the old attic", "something scratched behind the boxes", "a mother {animal} was making a bed for her babies"),
        ("the cellar", "two green eyes glowed behind the barrels", "it was only the neighbor's cat, looking for a warm spot"),
        ("deep water", "a shadow slid below the surface", "it was a curious fish, and the water reached no higher than {his} belly"),
        ("the big dog next door", "it barked and pulled at its chain", "it only wanted somebody to throw its ball"),
        ("the doctor", "the silver tools shone on the tray", "the little pinch was over before {he} could count to three"),
        ("high places", "the ground looked as small as a stamp", "the railing was strong and the view was full of wonders"),
        ("spiders", "eight thin legs moved over the wall", "the spider was busy and far more frightened than {he} was"),
        ("the first day of school", "the hall was full of loud voices and strange faces", "all the other new ones were nervous as well"),
        ("the forest at dusk", "twigs snapped and something breathed behind the ferns", "a lost {animal} was looking for company"),
        ("speaking in front of others", "a hundred faces turned towards {him}", "they smiled and wanted to hear {his} poem"),
        ("the vacuum cleaner", "it howled and swallowed everything in its path", "it was only a hungry machine with a button to turn it off"),
        ("the foghorn", "a giant seemed to moan over the sea", "it was only telling the ships where the rocks were"),
        ("the barber", "the scissors went snip right next to {his} ear", "it tickled, and afterwards {his} head felt light"),
        ("masks", "a face with huge teeth leaned over {him}", "behind it was {friend}, who could not stop giggling"),
    ),
    (
        "There was one thing that {hero} did not like at all: {he} was {+afraid} of {fear}. [{He} never told anybody.|Only {friend} knew.|When others talked about it, {he} looked away.]",
        "One {+weather} {+time} {he} had to face it. [{His} {elder} needed {a keepsake} from there.|There was no way around it.|{Friend} had asked {him} to come along.] {Hero} {+moved} {+adverb} closer. "
        "Then {seems}! [{He} heard a {+noise}.|{His} heart went thump, thump, thump.|{His} knees began to shake.] \"[Help|Who is there|Oh no]!\" {he} [whispered|cried|gasped].",
        "{His} {elder} [heard {him} and came|took {his} hand]. \"[I am here|You are not alone|I was {+afraid} of that too when I was little],\" {e.he} {+told}. "
        "\"[Let us look at it together.|Hold my hand and take one step.|Being {+scared} is no shame.]\" {Hero} [swallowed|nodded|held on tight].",
        "{He} took one step, and then another. [{He} opened {his} eyes wide.|{He} held up {a look} lantern.] And what did {he} find? {Truth}. "
        "{Hero} [began to laugh|had to giggle|let out a long breath]. \"[Is that all?|So that is what it was!|How silly of me!]\" {he} [said|laughed].",
        "The next time, {hero} was [hardly|not] {+scared} at all. [{He} even showed {friend} how to be brave.|\"I know your secret now,\" {he} said to {fear}.|When {friend} felt {+scared}, {hero} held {f.his} hand.]",
    ),
    CLOSING,
)

SHARE = Plot(
    ("sharing makes everything twice as nice", "saying sorry can mend a great deal", "friends are worth more than toys"),
    ("thing",),
    (),
    (
        "One {+weather} {+time}, {hero} and {friend} found {a look} {color} {thing} at the {place}. \"[It is mine|I saw it first|Give it to me]!\" shouted {hero}. "
        "\"No, [it is mine|I saw it first|I picked it up]!\" shouted {friend}.",
        "{Hero} pulled on one side and {friend} pulled on the other. [Nobody wanted to let go.|Their faces turned red.|They were both {+angry}.] Then there was a {+noise}. "
        "[The {thing} fell to the ground and broke in two.|The {thing} flew through the air and landed in a muddy ditch.|The {thing} rolled away and disappeared down the hill.] "
        "Now [no one had it|nobody could play with it]. They sat down with their backs to each other and felt {+sad}.",
        "{A worker} came by and saw them. \"[Why such long faces|What happened here|What is the matter]?\" asked the {worker}. {Hero} told {o.him} everything. "
        "The {worker} [scratched {o.his} chin|smiled]. \"[One {thing} is small, but a quarrel is big|{A thing} can be mended; can you mend a friendship|Half of something is more than all of nothing],\" {o.he} said.",
        "{Hero} looked at {friend}. \"I am sorry,\" {he} [said|mumbled]. \"I [should not have pulled|should have shared|was not fair].\" \"I am sorry too,\" {+told} {friend}. "
        "[They fixed the {thing} with string and glue.|They {+moved} after the {thing} and brought it back.|Together they washed the {thing} until it was {+look} again.]",
        "After that they took turns. [First {hero} had it and then {friend}.|{Hero} had it on {+weekday} and {friend} on {+weekday}.] [It was much more fun for two.|They even let {a animal} join in.] "
        "They played {+game} with it and forgot that they had ever been {+angry}.",
    ),
    CLOSING,
)

RESCUE = Plot(
    ("a small helper can do big things", "kindness comes back when you least expect it", "giving up is never the only way"),
    ("trouble", "where", "way", "thanks"),
    (
        ("was stuck in the mud", "near the edge of the marsh", "laid the {tool} over the mud and pulled", "shook itself and sprayed mud on everyone"),
        ("had fallen into a deep hole", "beside an old well", "let the {tool} down and waited until it climbed on", "licked {his} hand"),
        ("was caught in a thorny bush", "at the end of the lane", "bent the branches away with the {tool}", "rubbed its nose against {his} knee"),
        ("sat high on a branch and dared not come down", "in a crooked pine", "leaned the {tool} against the trunk and coaxed it down", "curled up in {his} lap"),
        ("had a string around its leg", "on the gravel by the canal", "used the {tool} to reach it and undid the knot", "danced in a circle"),
        ("was floating away on a piece of ice", "in the middle of the stream", "stretched out the {tool} and drew it to the bank", "gave {him} a wet kiss on the cheek"),
        ("was trapped under a fallen fence", "behind the stables", "lifted the boards with the {tool}", "followed {him} all the way home"),
        ("had lost its mother", "in the tall grass", "made it a bed with the {tool} and called until the mother answered", "looked back once before it ran off"),
        ("was shivering in the snow", "under a frozen hedge", "carried it home and warmed it beside the stove, with the {tool} as a roof", "fell asleep with a tiny snore"),
        ("had its head in a jar", "beside the garbage cans", "held the jar still with the {tool} and turned it gently", "sneezed and wagged all over"),
        ("could not get over the wall", "at the back of the vineyard", "built a small bridge with the {tool}", "brought {him} a shiny pebble the next day"),
        ("was tangled in a fishing net", "on the wet sand", "cut and loosened the meshes with the help of the {tool}", "splashed its tail twice as if to wave"),
    ),
    (
        "While {he} was {+fun}, {hero} heard a [small|faint|sad] sound. {He} {+moved} after it. There, {where}, was a little {animal}. It {trouble}! [The poor thing looked up with big eyes.|It {sound}.|\"Please help me,\" it seemed to say.]",
        "{Hero} tried to reach it, but {his} arms were too short. {He} called for {friend}. \"[Hurry|Come quick]! {A animal} is in trouble!\" {Friend} {+moved} over. {F.he} tried as well, and {f.he} could not do it either. They both felt {+sad}.",
        "\"[We must not give up|Let me think|There has to be a way],\" {+told} {hero}. {He} looked around. [Near {+sight} there was|Behind the shed {he} found] {a tool}. \"[I have an idea|I know what to do]!\" {he} [said|cried].",
        "{Hero} {way}, while {friend} [spoke to it softly|held on to {his} coat|kept it calm]. It took [a long time|{+number} tries|all their strength]. Then, with a {+noise}, the {animal} was free! It {thanks}.",
        "\"[You are safe now|There you go, little one|Take care],\" {+told} {hero}. [The {animal} {moved_animal} back to its {home}.|From then on, the {animal} came to visit every {+time}.|{Friend} gave it a piece of {f.his} lunch.] {Hero} felt {+glad}.",
    ),
    CLOSING,
)

MAKE = Plot(
    ("the best gifts come from the heart", "help is the nicest ingredient", "working together makes hard work light"),
    ("gift", "making", "missing", "detail"),
    (
        ("a birthday cake", "stirred the flour and the sugar", "an egg", "It had candles and a sugar star on top"),
        ("a birdhouse", "sawed the boards and counted the nails", "a round lid for the roof", "It had a tiny door and a perch"),
        ("a warm scarf", "wound the wool and clicked the needles", "one more ball of wool", "It was long enough to go around twice"),
        ("a pot of vegetable soup", "chopped the carrots and the leeks", "a pinch of salt", "It smelled of thyme and butter"),
        ("a picture book", "folded the paper and sharpened the pencils", "a bit of thread to bind it", "On each page there was a different adventure"),
        ("a paper lantern", "cut the paper and bent the wire", "a drop of glue", "It glowed like a small moon"),
        ("a kite", "measured the sticks and tied the corners", "a tail", "It looked like a dragon with a smile"),
        ("a necklace of beads", "sorted the beads by color", "a clasp", "It jingled with every step"),
        ("a wooden boat", "carved the hull and smoothed the mast", "a scrap of cloth for the sail", "It floated without tipping"),
        ("a basket of jam tarts", "rolled the dough and cut the circles", "a cup of berries", "They were sticky and sweet"),
        ("a puppet show", "glued the noses and painted the stage", "a curtain", "It had a princess, a goblin and a very fat mole"),
        ("a song", "hummed the tune and tapped the beat", "a good last line", "It made everybody want to clap"),
        ("a flower crown", "picked the stems and wove them together", "one last blossom", "It smelled of summer"),
        ("a rocking chair", "sanded the legs and hammered the pegs", "a soft cushion", "It creaked in a friendly way"),
    ),
    (
        "It was nearly the birthday of {his} {elder}. {Hero} wanted to [make|give {e.him}] {gift}. \"[It must be a surprise|Nobody may know|I will do it all by myself],\" {he} {+told}.",
        "{He} {making}. [It was hard work.|{He} sang while {he} worked.|{His} fingers got sticky.] But then {he} saw that something was missing: {missing}! {Hero} felt {+sad}. \"[What shall I do now|Without it I cannot finish|And the day is tomorrow]!\" {he} [said|cried].",
        "{He} {+moved} to {friend} and asked for {missing}. \"[I have it|I can give you that|You may have mine],\" {+told} {friend}, \"but [could you help me carry this {food} first|I need {a keepsake} for it|my {toy} is broken; can you mend it]?\" "
        "[{Hero} rolled up {his} sleeves and helped.|So {hero} helped {f.him} {+adverb}.] [It took all {+time}.|They talked and joked the whole time.|] Then {friend} kept {f.his} word.",
        "{Hero} {+moved} home with {missing} and finished the work. {Detail}. In the morning {he} put it on the table and hid {+hiding}. {His} {elder} came in and stood still. \"[Who made this|Is this for me|Oh my]?\" {e.he} asked.",
        "\"[Surprise|Happy birthday]!\" shouted {hero} and jumped out. {His} {elder} hugged {him}. \"[It is the nicest present I ever had|You made it with your own hands|I will always keep this day in my heart],\" {e.he} {+told}. {Hero} felt {+glad}, and {friend} was invited too.",
    ),
    CLOSING,
)

TREASURE = Plot(
    ("a good idea can come from anyone", "two heads are better than one", "sharing makes everything twice as nice"),
    ("clue", "riddle", "answer"),
    (
        ("an old map", "I have a mouth but never speak, and a bed but never sleep", "the river"),
        ("a bottle with a letter", "I have hands but cannot clap", "the clock tower"),
        ("a dusty scroll", "I have many teeth but never bite", "the comb in the barber's window"),
        ("a secret note", "I get wetter the more I dry", "the towel on the line"),
        ("a torn page", "I have a neck but no head", "the bottle on the shelf"),
        ("a carved stone", "I stand on one leg with my heart in my head", "the cabbage patch"),
        ("a folded paper", "I go up when the rain comes down", "the umbrella stand"),
        ("a wooden tile", "I have a spine but no bones", "the big book in the library"),
        ("a message in chalk", "I have keys but open no lock", "the piano in the hall"),
        ("a ribbon with words", "I follow you all day and leave you at night", "the shadow of the chapel"),
        ("a painted shell", "I run all day and never get tired", "the waterfall"),
        ("a crumpled ticket", "I have eyes but cannot see", "the potato field"),
    ),
    (
        "One {+time} {hero} was {+fun} when {he} found {clue} {+hiding}. On it stood: \"{riddle}. Look for me, and dig {+number} steps to the north.\" \"[A treasure|A riddle|This must be a secret]!\" {he} [gasped|whispered].",
        "{He} showed it to {friend}. \"[What can it be|It makes no sense|Somebody is playing a joke],\" {+told} {friend}. They thought and thought. [They asked {a worker}, who only laughed.|{Friend} guessed {a food}, but that was wrong.|They tried near {+sight}, but found only worms.] They felt {+sad}.",
        "[At supper|On the way home|The next morning], {hero} suddenly [jumped up|stopped]. \"I know it! It is {answer}!\" {he} [shouted|exclaimed]. They took {a tool} and {+moved} there {+adverb}.",
        "They counted the steps: one, two, three... [{Friend} dug and {hero} carried the earth away.|The ground was hard and full of roots.] There was a {+noise}. It was a box! The lid was heavy, and they had to lift it together. Inside were {treasure}.",
        "\"[What shall we do with it|We are rich|It belongs to both of us],\" {+told} {friend}. [They gave half of it to the {worker} at the {place}.|They kept {+number} pieces and hid the rest for other children, with a new riddle.|They shared everything with the whole street.] It made them feel {+glad}.",
    ),
    CLOSING,
)

MISCHIEF = Plot(
    ("telling the truth feels better than hiding it", "everyone makes mistakes", "a promise should be kept"),
    ("rule", "deed", "result", "repair"),
    (
        ("not to play ball in the house", "kicked the ball across the living room", "the blue vase fell from the shelf and broke", "swept up the pieces and saved coins for a new one"),
        ("not to eat the jam before supper", "dipped a finger in the jar, and then a spoon", "the jar was empty and {his} belly hurt", "picked berries for a whole afternoon and cooked new jam"),
        ("not to open the cage", "lifted the little latch", "the canary flew out of the window", "sat by the open window with seeds until the bird came back"),
        ("not to touch the wet paint", "pressed a hand on the fresh green door", "there were handprints all over the hall", "scrubbed the walls and painted the door again"),
        ("not to cut anything but paper", "took the scissors to the lace curtain", "the curtain had a hole as big as a plate", "sewed a patch with a sun on it"),
        ("not to walk through the seedlings", "took the short way across the vegetable bed", "the young lettuces lay flat", "planted new ones and watered them every day"),
        ("not to leave the gate open", "ran off without closing it", "the sheep were wandering down the road", "led them home one by one"),
        ("not to use the good ink", "drew a whale with it on the tablecloth", "the ink went through to the table", "rubbed the table with lemon until it was clean"),
        ("not to climb on the shelf", "climbed up to reach the cookies", "the shelf came down with all the cups", "glued the handles and washed the floor"),
        ("not to tell the secret", "told it to everyone in the lane", "the surprise party was no surprise any more", "thought of a new surprise and kept quiet this time"),
        ("not to feed the fish too much", "emptied the whole can into the tank", "the water turned cloudy", "changed the water and gave one pinch a day"),
        ("not to play with the hose", "turned the tap as far as it would go", "the kitchen was full of water", "mopped until the last puddle was gone"),
    ),
    (
        "{His} {elder} had told {hero} {rule}. \"[Do you promise|Do you understand|Will you remember it]?\" {e.he} asked. \"I promise,\" said {hero}.",
        "But then {his} {elder} went to the {place}, and {hero} was [bored|alone|curious]. \"[Just once|Nobody will know|Only for a moment],\" {he} thought. {He} looked around and {deed}. There was a {+noise}, and {result}!",
        "{Hero} felt {+scared}. [{He} hid {+hiding}.|{He} wanted to blame the {animal}.|\"I could say that it was {friend},\" {he} thought.] But {his} [tummy felt strange|heart was heavy|cheeks were hot]. When {his} {elder} came home, {hero} {+moved} {+adverb} to {e.him}.",
        "\"It was me,\" {he} [said|whispered]. \"I [broke my promise|did not listen]. I am very sorry.\" {His} {elder} was quiet for a while. \"[I am cross about it|That makes me sad],\" {e.he} said, \"but [I am glad that you told me the truth|it was brave to tell me]. [How can we put it right?|What will you do now?]\"",
        "So {hero} {repair}. [It took {+number} days.|It was a lot of work.|{Friend} offered to help, but {hero} wanted to do it alone.] {His} {elder} [gave {him} {a food}|patted {his} head]. \"[All is forgiven|Now it is good again],\" {e.he} {+told}, and {hero} felt {+glad}.",
    ),
    CLOSING,
)

WEATHER = Plot(
    ("a new plan can be better than the old one", "a good idea can come from anyone", "fun does not depend on the weather"),
    ("plan", "spoiler", "idea", "outcome"),
    (
        ("have a picnic", "dark clouds came and it poured", "spread the blanket on the living room floor", "they ate with their fingers and told stories about pirates"),
        ("build a snowman", "the sun had come out and the snow had melted", "made a man of mud with a cabbage for a hat", "the mud man stood in the garden with a carrot nose until Easter"),
        ("sail the toy boat", "there was no wind at all", "blew into the sail with a bicycle pump", "the boat crossed the pond like a racing yacht"),
        ("watch the stars", "fog covered the whole sky", "made stars of foil and hung them from the ceiling", "they lay on the carpet and gave every star a name"),
        ("go sledding", "the snow had turned to slush", "slid down the stairs on a mattress", "they laughed until their bellies hurt"),
        ("fly the kite", "the rain would not stop", "tied ribbons to the fan", "the ribbons danced like a flock of parrots"),
        ("swim in the lake", "hail began to rattle on the roof", "filled the tub with bubbles and put on goggles", "they dived for spoons as if they were pearls"),
        ("hold a race", "the path was covered with ice", "let two snails run on a plank", "the smaller snail won by a whisker, and it took an hour"),
        ("pick apples", "a storm shook every branch", "waited under the porch and then gathered what had fallen", "they baked the biggest pie in the village"),
        ("camp in the yard", "thunder rolled and lightning flashed", "put up the tent between the beds", "they ate crackers by flashlight and sang to the rain"),
    ),
    (
        "For {+number} days {hero} and {friend} had looked forward to this {+time}. They wanted to {plan}. [{Hero} had packed {a food} and {a food}.|They had told everyone about it.|{Friend} had hardly slept.]",
        "But when they looked outside, {spoiler}. \"[Oh no|That is not fair|Everything is ruined]!\" cried {friend}. {Hero} pressed {his} nose to the window and felt {+sad}. [They waited and waited.|The clock went tick, tock.|A wet {animal} {moved_animal} past the window.]",
        "\"[When does it stop|Will it ever end]?\" asked {friend}. \"[Nobody can boss the weather|The garden is glad of it|You cannot change the sky, but you can change the plan],\" {+told} {hero}'s {elder}. {Hero} thought about that. Then {he} [smiled|snapped {his} fingers]. \"[I have an idea|Wait here]!\" {he} said.",
        "{He} {idea}. {Friend} [helped {+adverb}|began to giggle|clapped {f.his} hands]. [They used {a tool} and {a keepsake}.|They put on their {+look} hats.|] And so {outcome}.",
        "\"[This is even better|I hope it rains tomorrow too|What a day],\" {+told} {friend}. When it was over, [there was {+sight} to look at|a rainbow stood over the {place}|the sky was clear again], but they [hardly noticed|did not want to stop].",
    ),
    CLOSING,
)

CONTEST = Plot(
    ("being kind is better than being first", "boasting wins no friends", "helping is a way of winning"),
    ("contest", "boast", "event", "prize"),
    (
        ("running race", "My legs are the longest", "stumbled over a root and held {o.his} ankle", "a laurel wreath"),
        ("baking contest", "My cake is taller than a chimney", "saw {o.his} cake slide off the table", "a wooden spoon with a bow"),
        ("sandcastle contest", "My towers touch the sky", "saw a wave wash {o.his} castle away", "a golden shovel"),
        ("boat race", "My boat is the fastest in the world", "lost {o.his} rudder and drifted in circles", "a brass compass"),
        ("singing contest", "My voice can break glass", "forgot the words and turned pale", "a silver bell"),
        ("pumpkin show", "My pumpkin weighs more than a pony", "found that a worm had eaten {o.his} pumpkin hollow", "a blue ribbon"),
        ("kite contest", "My kite will reach the moon", "got {o.his} string tangled in a pine", "a box of paints"),
        ("spelling match", "I know every word in the dictionary", "mixed up two letters and began to cry", "a thick book"),
        ("obstacle course", "I do not even need to try", "got stuck in the barrel", "a medal on a string"),
        ("sack race", "I hop like a champion", "fell flat with {o.his} sack over {o.his} head", "a basket of peaches"),
    ),
    (
        "There was going to be {a contest} at the {place}, and everyone was [excited|talking about it]. {Hero} had practiced for {+number} weeks. \"[You have no chance|Do not even try],\" said {other}, who was always boasting. \"{boast}!\" {Hero} felt {+sad}, but {friend} said, \"[Just do your best|I believe in you|Do it for fun].\"",
        "On the day of the {contest} [the {place} was full of flags|a band played|the {worker} blew a horn]. {Other} was ahead at once. [\"See you later!\" {o.he} called.|The crowd cheered.] {Hero} did not look left or right. {He} worked {+adverb} and thought of what {he} had practiced.",
        "Suddenly there was a {+noise}. {Other} {event}! [Everybody else went on.|A few people laughed.] {Hero} could win now. {He} looked at the finish and then at {other}. \"[This is my chance|I could be first|What should I do],\" {he} thought.",
        "But {hero} [turned around|stopped]. \"[Let me help you,|Take my hand,|Are you hurt?]\" {he} [said|called]. {Other} looked at {him} with wide eyes. \"[Why do you help me|After all I said],\" {o.he} mumbled. Together they [went on slowly|finished it, last of all|made it to the end].",
        "{Someone} won and got {prize}. But that was not all. \"There is a second prize for the kindest heart,\" said the {worker}, and gave {hero} {a food} and a [big hug|round of applause]. {Other} said, \"I am sorry that I boasted.\" From then on they practiced together, and both felt {+glad}.",
    ),
    CLOSING,
)

WISH = Plot(
    ("there is no place like home", "wishes should be chosen with care", "enough is as good as a feast"),
    ("wish", "wonderful", "trouble", "learned"),
    (
        ("everything I touch turns to candy", "the table became licorice and the lamp a lollipop", "{his} pillow was sticky and even the {animal} turned into fudge", "sweets are best when they are rare"),
        ("I never have to sleep", "{he} played all night under the moon", "all the others were asleep and {his} eyes burned", "a night of rest is a treasure"),
        ("I am as tall as a tree", "{he} looked over all the roofs", "{he} did not fit through {his} own door", "{his} own size was just right"),
        ("it is my birthday every day", "there were presents and balloons each morning", "nobody could think of a new present and the cake tasted dull", "a special day must be special"),
        ("I can talk with all the animals", "the hens told jokes and the horse sang", "they never stopped talking and all of them complained at once", "listening is hard work"),
        ("nobody can see me", "{he} tickled the mayor and rode the milk cart", "{his} {elder} looked for {him} and wept", "it is good to be seen"),
        ("I am the king of everything", "the people bowed and brought plums", "there were papers to sign from dawn to dusk and nobody wanted to play", "a crown is heavier than it looks"),
        ("I can fly", "{he} soared over the steeple", "{he} could not come down and grew cold among the clouds", "the ground is a fine place to stand on"),
        ("winter never ends", "there were snowball fights each day", "the birds were hungry and no flower came up", "every season has its turn"),
        ("all my toys come alive", "the tin soldiers marched and the dolls waltzed", "they quarreled over the best shelf and nobody would be tidy", "quiet toys have their charm"),
    ),
    (
        "One {+weather} {+time}, near {+sight}, {hero} met {a wonder}. It was sitting on {a look} stone and [sighed|wept]. \"[I am so thirsty|I have lost my {keepsake}|I have a thorn in my foot],\" it said. {Hero} helped it {+adverb}, as anyone kind would do.",
        "\"[Thank you|You have a good heart],\" said the {wonder}. \"You may make one wish.\" {Hero} did not think for long. \"I wish that {wish}!\" {he} [cried|said]. The {wonder} [waved a hand|clapped twice|blinked], and there was a {+noise}.",
        "It worked! At first it was great: {wonderful}. {Hero} felt {+glad}. \"[Look at this|This is the best wish ever]!\" {he} called to {friend}. [{Friend} was amazed.|{Friend} was not so sure.|\"Be careful,\" said {friend}.]",
        "But soon {trouble}. [\"This is not what I wanted!\" {he} cried.|{Hero} felt {+sad}.|{He} tried to make it stop, but {he} could not.] {He} {+moved} back to the stone. \"[Please|Dear {wonder}], take the wish back,\" {he} begged.",
        "The {wonder} smiled. \"[I thought that you would come|Many wishes look better from far away],\" it said. It [waved a hand|clapped twice|blinked] again, and everything was as before. {Hero} {+moved} home and told {his} {elder}. \"Now I know that {learned},\" {he} said, and {he} was {+glad} with what {he} had.",
    ),
    CLOSING,
)

NEWCOMER = Plot(
    ("being different is wonderful", "a friendly word costs nothing", "everyone is good at something"),
    ("because", "talent", "chance"),
    (
        ("{o.he} spoke another language", "draw anything with one line", "the class needed a poster for the fair"),
        ("{o.he} was much smaller than the rest", "slip through the narrowest gap", "the ball rolled under the locked shed"),
        ("{o.he} wore thick glasses", "see the tiniest things", "the teacher lost a contact lens on the lawn"),
        ("{o.he} had a squeaky voice", "imitate every bird", "a fledgling would not come out of its hole"),
        ("{o.he} was very quiet", "listen better than anyone", "a faint cry came from below the bridge"),
        ("{o.he} came from far away", "cook the most wonderful soup", "the cook of the camp fell ill"),
        ("{o.he} moved so slowly", "keep perfectly still", "a butterfly had to be photographed"),
        ("{o.he} always carried a book", "remember every story", "the lights went out and the little ones were afraid"),
        ("{o.he} had a stutter", "sing without a single stumble", "the choir lost its soloist"),
        ("{o.he} could not run", "plan three moves ahead", "the chess club needed one more player"),
    ),
    (
        "One {+time} somebody new came to the {place}. It was {other}. [{Other} stood by the wall and looked at {o.his} shoes.|{Other} sat alone and nibbled {a food}.] Nobody played with {o.him}, because {because}. \"[Strange|Too odd for us|Let us go and play {+game}],\" said some of the others.",
        "{Hero} watched it and felt {+sad}. {He} remembered how it was to be new. [{He} thought about it all {+time}.|\"Somebody ought to be kind,\" {he} thought. \"Why not me?\"] So {he} {+moved} over. \"Hello, I am {hero}. [Do you want to play {+game}|Would you like half of my {food}|What is your name]?\" {he} asked.",
        "{Other} [smiled a little|looked up]. \"[I would like that|Thank you|Me? Really],\" {o.he} said softly. They talked about {+fun} and {+fun}. {Hero} found out that {other} could {talent}. \"[That is amazing|You must show the others]!\" {+told} {hero}. But {other} was too shy.",
        "Then something happened: {chance}! [Everyone ran about and nobody knew what to do.|\"Who can help?\" asked the {worker}.] {Hero} [took {other} by the hand|gave {other} a nudge]. \"You can do this,\" {he} whispered. {Other} took a deep breath and stepped forward. It was so quiet that one could hear a pin drop.",
        "And {other} did it! [Everybody cheered.|The others stared with open mouths.] \"[We are sorry that we left you out|Will you teach us],\" {+told} {friend}. {Other} felt {+glad}. That {+time} they all played {+game}, and {other} and {hero} were the last to go home.",
    ),
    CLOSING,
)

GARDEN = Plot(
    ("patience is a kind of magic", "small things grow when you care for them", "good things take their time"),
    ("plant", "foe", "remedy"),
    (
        ("sunflower", "a hungry snail nibbled the leaves at night", "laid a ring of eggshells around it"),
        ("pumpkin", "the soil was dry as dust", "carried water from the well, morning and evening"),
        ("bean", "the wind bent the thin stem", "tied it to a stick with a soft thread"),
        ("strawberry plant", "the blackbirds came for the fruit", "hung up bits of foil that flashed in the light"),
        ("apple tree", "the frost came late in May", "wrapped it in an old blanket every evening"),
        ("rose", "green lice sat on the buds", "asked the ladybugs for help and carried them over on a leaf"),
        ("tulip", "moles pushed up the earth", "planted garlic next to it, for moles do not like the smell"),
        ("melon", "it got too little sun", "moved it to the warm wall"),
        ("carrot", "weeds grew faster than the carrot", "pulled the weeds out one after the other"),
        ("tomato plant", "heavy rain beat down on it", "built a small roof of glass over it"),
    ),
    (
        "{His} {elder} gave {hero} a small {+look} seed. \"[This will be {a plant}|{A plant} is asleep in there],\" {e.he} {+told}. \"It needs earth, water, sun and patience.\" \"[Patience|How much patience]?\" asked {hero}. \"[The most of all|That is the hardest part].\"",
        "{Hero} made a hole with {his} finger, put the seed in and watered it. Then {he} sat down to wait. Nothing happened. {He} waited {+number} minutes. [Nothing.|Still nothing.] \"[It is broken|Maybe it is asleep|Come out],\" {he} said to the earth. {Friend} laughed. \"[You cannot hurry {a plant}|Come and play {+game} instead],\" {f.he} {+told}.",
        "Days went by. {Hero} came every {+time}. And one {+weather} {+time} there was a green dot! \"[It is alive|Look, look]!\" {he} shouted. The dot became a stem, and the stem had leaves. But then {foe}. {Hero} felt {+sad}.",
        "[\"I will look after you,\" {he} promised.|{He} asked {a worker} for advice.|{He} thought about it all night.] Then {he} {remedy}. [It was a lot of trouble for one small plant.|{Friend} helped {+adverb}.|] And the {plant} held on. Week after week it grew, until it was [taller than {friend}|the finest in the whole lane|{+look} and strong].",
        "In the end there was enough for everybody. [{Hero} gave some to {friend} and some to the {worker}.|They had a feast, with {a food} besides.] \"[It was worth waiting for|Now I know what patience is],\" {he} {+told}. {His} {elder} smiled and put {+number} new seeds into {his} hand.",
    ),
    CLOSING,
)

NIGHT = Plot(
    ("worries are smaller when you share them", "it is fine to ask for help", "after each night comes a morning"),
    ("worry", "comfort"),
    (
        ("the moon might fall down", "the moon had been up there since before the oldest turtle was born"),
        ("tomorrow might be a bad day", "tomorrow was still empty, like a page to draw on"),
        ("{friend} might move away", "a letter can travel anywhere, and so can a friend"),
        ("there was something in the closet", "the closet held nine shirts, one scarf and a smell of lavender"),
        ("the stars might go out", "each of them was a sun with its own breakfast time"),
        ("the wind sounded lonely", "the wind was only singing the trees to sleep"),
        ("{he} might forget how to fall asleep", "sleep always finds those who are not looking for it"),
        ("the tooth that had come loose would hurt", "a new and bigger one was already waiting in line"),
        ("the goldfish was bored", "a fish forgets the start of the bowl before it reaches the end"),
        ("somebody far away was sad", "somewhere somebody was giving them a hug just now"),
    ),
    (
        "It was late, and {hero} could not sleep. [{He} turned to the left and to the right.|The pillow was too hot, and the blanket was too short.|{He} counted {+number} sheep, but they would not keep in line.] {He} was thinking that {worry}. {He} felt {+sad}.",
        "{He} climbed out of bed and {+moved} {+adverb} to {his} {elder}. [The floor went {+noise} under {his} feet.|The house was dark and still.] \"[Why are you up|Can you not sleep|What is it, little one]?\" asked {his} {elder}. {Hero} told {e.him} all about it.",
        "{His} {elder} did not laugh. {E.he} made [warm milk with honey|a cup of cocoa|a pot of mint tea] and they sat down by the window. They saw {+sight}, and far away {a animal} {sound}. \"[Listen|Let me tell you something|I used to think about that too],\" {e.he} said. And {e.he} explained that {comfort}.",
        "{Hero} thought about it. \"[Are you sure|Really and truly|Even on {+weekday}]?\" {he} asked. \"Quite sure,\" {+told} {his} {elder}. [They named {+number} stars after things that they liked: {a food}, {a toy}, {a flower}.|They hummed a slow tune together.|{Hero} leaned {his} head on {e.his} arm.] Slowly {his} eyes grew heavy.",
        "{His} {elder} carried {him} back and put {his} {color} {toy} beside {him}. \"Good night,\" {e.he} whispered. But {hero} was asleep already, and in {his} dream {he} was {+fun} with {friend}.",
    ),
    CLOSING[:1],  # nobody gets up again for a feast
)

PLOTS: dict[str, Plot] = {
    "lost": LOST, "skill": SKILL, "fear": FEAR, "share": SHARE, "rescue": RESCUE, "make": MAKE, "treasure": TREASURE,
    "mischief": MISCHIEF, "weather": WEATHER, "contest": CONTEST, "wish": WISH, "newcomer": NEWCOMER, "garden": GARDEN,
    "night": NIGHT,
}  # fmt: skip
