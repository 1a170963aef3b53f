// add_mul_0: aten.add.Tensor, aten.mul.Tensor
static void add_mul_0_part(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf3, long s75, long s96, long begin, long end) {
  const long n = s75 * s96;
  const long lo = begin * 8, hi = end * 8 < n ? end * 8 : n;
  for (long i0 = lo; i0 < hi; i0 += 8) {
    const long left = hi - i0;
    const f32x8 t0 = load8(arg0_1 + i0, left);
    const f32x8 t2 = t0 + 1.0f;
    const f32x8 t3 = load8(arg1_1 + i0, left);
    const f32x8 t4 = t2 * t3;
    const f32x8 t6 = t4 + 2.0f;
    store8(buf3 + i0, t6, left);
  }
}

extern "C" void add_mul_0(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf3, long s75, long s96) {
  const long units = ((s75 * s96) + 7) / 8;
  if ((s75 * s96) < 32768) return add_mul_0_part(arg0_1, arg1_1, buf3, s75, s96, 0, units);
  auto work = [&](long thread, long threads) {
    add_mul_0_part(arg0_1, arg1_1, buf3, s75, s96, units * thread / threads, units * (thread + 1) / threads);
  };
  parallel(work);
}
