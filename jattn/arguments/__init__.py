"""Arguments: what every public function that attends is given, validated once.

options    of one head: q, k, v, mask, score, bias, sink, scale, positions, dropout, tile
heads      of many heads: which head serves which, options with an entry a head or a row
"""
