"""How the form of a prompt changes what a model answers.

questions   generated arithmetic and the lecture's own questions
own_files   questions of the user
examples    which worked examples stand in front of a question
forms       prompts: zero-shot, few-shot, chain of thought in one and two stages
answers     the answer in a text, and whether it is right
options     log-probabilities of given options, with four normalisations
speaker     a model that answers prompts, with or without its chat template
measure     all modes
self_report what the model says of itself, beside what was measured
findings    tables and sentences
"""
