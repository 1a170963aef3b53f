// pow_mean_add_mul_0: aten.pow.Tensor_Scalar, aten.mean.dim, aten.add.Tensor, aten.mul.Tensor, prims.convert_element_type.default
static void pow_mean_add_mul_0_part(const bf16* __restrict arg0_1, const bf16* __restrict arg1_1, bf16* __restrict buf7, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    f32x8 t3_all = {};
    f32x8 t3_all_carry = {};
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t0 = load8(arg0_1 + i0 * 16 + r0, 8);
        const f32x8 t1 = t0;
        const f32x8 t2 = t1 * t1;
        t3_all += t2;
      }
    }
    const f32x8 t3 = fold_sum(t3_all);
    const f32x8 t5 = t3 / 16.0f;
    const f32x8 t7 = t5 + 9.999999974752427e-07f;
    const f32x8 t8 = 1 / sqrt(t7);
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t9 = load8(arg1_1 + r0, 8);
        const f32x8 t10 = t9;
        const f32x8 t11 = load8(arg0_1 + i0 * 16 + r0, 8);
        const f32x8 t12 = t11;
        const f32x8 t13 = t12 * t8;
        const f32x8 t14 = round_bf16(t13);
        const f32x8 t15 = t14;
        const f32x8 t16 = t10 * t15;
        const f32x8 t17 = round_bf16(t16);
        store8(buf7 + i0 * 16 + r0, t17, 8);
      }
    }
  }
}

extern "C" void pow_mean_add_mul_0(const bf16* __restrict arg0_1, const bf16* __restrict arg1_1, bf16* __restrict buf7) {
  const long units = 4;
  pow_mean_add_mul_0_part(arg0_1, arg1_1, buf7, 0, units);
}
