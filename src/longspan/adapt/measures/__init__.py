"""What a swapped model is measured by, each beside the original.

layer_error        how far each head of each layer is from exact attention
loss_by_position   the loss of the next token, by position in the text
recall             needles and random pairs, asked for after a gap
recall_prompts     the texts that `recall` asks with
decoding           bytes of the state and milliseconds a token, by length
encoding           sentence vectors and masked tokens of encoders
reach              how far a model reads: its window and its receptive field
intervals          Wilson's interval of a share, the paired bootstrap of a difference
records            dataclasses to JSON and back
"""
