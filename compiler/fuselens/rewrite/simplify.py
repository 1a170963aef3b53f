def simplify(gm): return gm
