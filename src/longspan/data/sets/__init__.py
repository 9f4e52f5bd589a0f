"""Named data sets.

named             the catalogue: what each set is, and where its files are
sources           checksums, addresses and licences (sources.toml)
download          https downloads with size, speed and checksum limits
prepare           check, count and tokenise the files of a set
prepared_tokens   read what `longspan data prepare --out` wrote
generated         small data sets that longspan makes itself
"""
