// mul_exp_add_0: aten.mul.Tensor, aten.exp.default, aten.add.Tensor
static void mul_exp_add_0_part(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf3, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    for (long i1 = 0; i1 < 8; i1 += 8) {
      const f32x8 t0 = load8(arg0_1 + i0 * 8 + i1, 8);
      const f32x8 t2 = t0 * 2.0f;
      const f32x8 t3 = exp(t2);
      const f32x8 t4 = load_strided8(arg1_1 + i1 * 6 + i0, 6, 8);
      const f32x8 t5 = t3 + t4;
      store8(buf3 + i0 * 8 + i1, t5, 8);
    }
  }
}

extern "C" void mul_exp_add_0(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf3) {
  const long units = 6;
  mul_exp_add_0_part(arg0_1, arg1_1, buf3, 0, units);
}
