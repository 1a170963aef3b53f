def order(gm): return gm
