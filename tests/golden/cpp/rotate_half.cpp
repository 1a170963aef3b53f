// neg_cat_0: aten.neg.default, aten.cat.default
static void neg_cat_0_part(const float* __restrict arg0_1, float* __restrict buf3, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    for (long i1 = 0; i1 < 4; i1 += 4) {
      const f32x4 t0 = load4(arg0_1 + i0 * 8 + i1 + 4, 4);
      const f32x4 t1 = -t0;
      store4(buf3 + i0 * 8 + i1, t1, 4);
    }
  }
}

extern "C" void neg_cat_0(const float* __restrict arg0_1, float* __restrict buf3) {
  const long units = 3;
  neg_cat_0_part(arg0_1, buf3, 0, units);
}

// cat_0: aten.cat.default
static void cat_0_part(const float* __restrict arg0_1, float* __restrict buf3, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    for (long i1 = 0; i1 < 4; i1 += 4) {
      const f32x4 t0 = load4(arg0_1 + i0 * 8 + i1, 4);
      store4(buf3 + i0 * 8 + i1 + 4, t0, 4);
    }
  }
}

extern "C" void cat_0(const float* __restrict arg0_1, float* __restrict buf3) {
  const long units = 3;
  cat_0_part(arg0_1, buf3, 0, units);
}

// mul_add_0: aten.mul.Tensor, aten.add.Tensor
static void mul_add_0_part(const float* __restrict buf3, const float* __restrict arg0_1, float* __restrict buf7, long begin, long end) {
  const long n = 24;
  const long lo = begin * 8, hi = end * 8 < n ? end * 8 : n;
  for (long i0 = lo; i0 < hi; i0 += 8) {
    const f32x8 t0 = load8(buf3 + i0, 8);
    const f32x8 t2 = t0 * 2.0f;
    const f32x8 t3 = load8(arg0_1 + i0, 8);
    const f32x8 t4 = t2 + t3;
    store8(buf7 + i0, t4, 8);
  }
}

extern "C" void mul_add_0(const float* __restrict buf3, const float* __restrict arg0_1, float* __restrict buf7) {
  const long units = 3;
  mul_add_0_part(buf3, arg0_1, buf7, 0, units);
}
