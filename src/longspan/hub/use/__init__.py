"""Use a loaded model in one line.

generate   continue texts, greedily, by sampling or by beam search; `stream` yields pieces
chat       a conversation, turn by turn
translate  translate texts with an encoder-decoder
fill       predict masked tokens
embed      one vector for each text
texts      encode texts for a model, and check their lengths
"""
