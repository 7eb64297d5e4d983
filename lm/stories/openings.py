"""Story openings for samples and for the judge: each stops where a story must go on."""

from __future__ import annotations

SAMPLE_PROMPTS = ("Once upon a time", "One day, a little girl named", 'Tom looked at the big dog and said, "')

OPENINGS = (
    "Once upon a time there was a small gray kitten who was afraid of the rain. One morning it began "
    "to rain and the kitten was far from home. It looked around and saw",
    'Mia had a red balloon. The wind took it and carried it over the fence. "Oh no!" she said. "I must',
    "Ben and his grandfather were building a boat out of an old box. They had paint and string, but "
    "they had no sail. Ben thought for a while and then",
    "In a quiet forest lived a bear who could not sleep. Every night he counted the stars, but there "
    "were always too many. One night a tiny owl landed beside him and",
    "Lily found a key in the garden. It was old and very small. She tried it on the door, on the gate"
    " and on the clock. Then she remembered",
    'There was a duck who wanted to read. All the other ducks laughed. "Ducks swim and ducks quack," '
    "they said. But the duck",
    "Sam broke his sister's favorite cup. Nobody saw it. He put the pieces in a box and hid it under "
    "his bed. That evening his sister asked",
    "It was the first day of school, and Nora held her mother's hand very tight. The teacher had a "
    "kind face and a bright yellow scarf. When Nora came in,",
    "Deep in the sea lived a little crab with one big claw and one small claw. He was ashamed of the "
    "small one, until one day",
    "Max and Ella wanted the same swing. They pulled and pushed and shouted. Then an old man on a "
    "bench began to laugh and said",
    "The snow came in the night and covered the whole village. In the morning Otto opened the door "
    "and could not believe his eyes. In front of the house stood",
    "A baby bird fell out of its nest and could not fly. A big dog came near. The bird closed its "
    "eyes. But the dog",
    "Zara had a seed that a stranger had given to her. She put it in a pot and watered it every day. "
    "After a week",
    "The moon was sad because nobody talked to it. One night a boy named Leo leaned out of his window"
    " and called",
    "Anna's grandmother baked the best bread in town. One day she was ill and could not get up. Anna "
    "tied on the big apron and",
    "There was a train that was always late. It stopped for every flower and every cow. One day the "
    "people on the train",
    "A fox and a rabbit fell into the same hole. They looked at each other for a long time. At last "
    "the rabbit said",
    "Tim got a new bike for his birthday, but he did not know how to ride it. He fell once, he fell "
    "twice. His friend Amy said",
    "Every evening the lighthouse keeper lit the lamp. But on this evening the lamp would not burn, "
    "and a ship was coming. The keeper's daughter",
    'The little robot could do many things, but it could not laugh. "What is it like?" it asked the '
    "children. They",
)
