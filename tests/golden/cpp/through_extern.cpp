// add_0: aten.add.Tensor
static void add_0_part(const float* __restrict arg0_1, float* __restrict buf0, long begin, long end) {
  const long n = 36;
  const long lo = begin * 8, hi = end * 8 < n ? end * 8 : n;
  for (long i0 = lo; i0 < hi; i0 += 8) {
    const long left = hi - i0;
    const f32x8 t0 = load8(arg0_1 + i0, left);
    const f32x8 t2 = t0 + 1.0f;
    store8(buf0 + i0, t2, left);
  }
}

extern "C" void add_0(const float* __restrict arg0_1, float* __restrict buf0) {
  const long units = 5;
  add_0_part(arg0_1, buf0, 0, units);
}

// mul_0: aten.mul.Tensor
static void mul_0_part(const float* __restrict buf0, float* __restrict buf1, long begin, long end) {
  const long n = 36;
  const long lo = begin * 8, hi = end * 8 < n ? end * 8 : n;
  for (long i0 = lo; i0 < hi; i0 += 8) {
    const long left = hi - i0;
    const f32x8 t0 = load8(buf0 + i0, left);
    const f32x8 t1 = load8(buf1 + i0, left);
    const f32x8 t2 = t0 * t1;
    store8(buf1 + i0, t2, left);
  }
}

extern "C" void mul_0(const float* __restrict buf0, float* __restrict buf1) {
  const long units = 5;
  mul_0_part(buf0, buf1, 0, units);
}
