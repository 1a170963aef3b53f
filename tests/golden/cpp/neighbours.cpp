// sub_0: aten.sub.Tensor
extern "C" void sub_0(const float* __restrict arg0_1, float* __restrict buf3) {
  const long begin = 0, end = 1;
  const long n = 8;
  const long lo = begin * 8, hi = end * 8 < n ? end * 8 : n;
  for (long i0 = lo; i0 < hi; i0 += 8) {
    const f32x8 t0 = load8(arg0_1 + i0 + 1, 8);
    const f32x8 t1 = t0 * t0;
    const f32x8 t2 = load8(arg0_1 + i0, 8);
    const f32x8 t3 = t2 * t2;
    const f32x8 t4 = t1 - t3;
    store8(buf3 + i0, t4, 8);
  }
}
