// add_relu_mul_0: aten.add.Tensor, aten.relu.default, aten.mul.Tensor
static void add_relu_mul_0_part(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf2, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    for (long i1 = 0; i1 < 16; i1 += 8) {
      const f32x8 t0 = load8(arg0_1 + i0 * 16 + i1, 8);
      const f32x8 t1 = load8(arg1_1 + i1, 8);
      const f32x8 t2 = t0 + t1;
      const f32x8 t4 = max(t2, splat(f32x8{}, 0.0f));
      const f32x8 t6 = t4 * 0.5f;
      store8(buf2 + i0 * 16 + i1, t6, 8);
    }
  }
}

extern "C" void add_relu_mul_0(const float* __restrict arg0_1, const float* __restrict arg1_1, float* __restrict buf2) {
  const long units = 8;
  add_relu_mul_0_part(arg0_1, arg1_1, buf2, 0, units);
}
