"""What attention cannot do at every length (Hahn 2020; Tran et al. 2018), with models that are really trained.

languages   PARITY, FIRST, Dyck-1, Dyck-2 and agreement, drawn at any length
hard        attention that reads one key
experiment  a small LSTM and small Transformers, trained on short words and tested on long ones
findings    accuracy by length, as curves and tables
"""
