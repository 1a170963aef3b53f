// exp_tanh_mul_0: aten.exp.default, aten.tanh.default, aten.mul.Tensor
static void exp_tanh_mul_0_part(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf2, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long r0 = unit;
    for (long i0 = 0; i0 < 8; i0 += 8) {
      const f32x8 t0 = load8(arg0_1 + i0, 8);
      const f32x8 t1 = exp(t0);
      const f32x8 t2 = tanh(t1);
      const f32x8 t3 = load8(arg1_1 + r0 * 8 + i0, 8);
      const f32x8 t4 = t2 * t3;
      store8(buf2 + r0 * 8 + i0, t4, 8);
    }
  }
}

extern "C" void exp_tanh_mul_0(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf2) {
  const long units = 6;
  exp_tanh_mul_0_part(arg0_1, arg1_1, buf2, 0, units);
}
