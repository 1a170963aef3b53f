// add_var_mean_sub_mul_0: aten.add.Tensor, aten.var_mean.correction, aten.sub.Tensor, aten.mul.Tensor
static void add_var_mean_sub_mul_0_part(const float* __restrict arg0_1, const float* __restrict arg1_1, const float* __restrict arg2_1, const float* __restrict arg3_1, float* __restrict buf10, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    f32x8 t3_all = {};
    f32x8 t3_all_carry = {};
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t0 = load8(arg0_1 + i0 * 16 + r0, 8);
        const f32x8 t1 = load8(arg1_1 + i0 * 16 + r0, 8);
        const f32x8 t2 = t0 + t1;
        t3_all += t2;
      }
    }
    const f32x8 t3 = fold_sum(t3_all);
    const f32x8 t5 = t3 / 16.0f;
    f32x8 t11_all = {};
    f32x8 t11_all_carry = {};
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t6 = load8(arg0_1 + i0 * 16 + r0, 8);
        const f32x8 t7 = load8(arg1_1 + i0 * 16 + r0, 8);
        const f32x8 t8 = t6 + t7;
        const f32x8 t9 = t8 - t5;
        const f32x8 t10 = t9 * t9;
        t11_all += t10;
      }
    }
    const f32x8 t11 = fold_sum(t11_all);
    const f32x8 t12 = t11 / 16.0f;
    const f32x8 t14 = t12 + 9.999999747378752e-06f;
    const f32x8 t15 = 1 / sqrt(t14);
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t16 = load8(arg0_1 + i0 * 16 + r0, 8);
        const f32x8 t17 = load8(arg1_1 + i0 * 16 + r0, 8);
        const f32x8 t18 = t16 + t17;
        const f32x8 t19 = t18 - t5;
        const f32x8 t20 = t19 * t15;
        const f32x8 t21 = load8(arg2_1 + r0, 8);
        const f32x8 t22 = t20 * t21;
        const f32x8 t23 = load8(arg3_1 + r0, 8);
        const f32x8 t24 = t22 + t23;
        store8(buf10 + i0 * 16 + r0, t24, 8);
      }
    }
  }
}

extern "C" void add_var_mean_sub_mul_0(const float* __restrict arg0_1, const float* __restrict arg1_1, const float* __restrict arg2_1, const float* __restrict arg3_1, float* __restrict buf10) {
  const long units = 12;
  add_var_mean_sub_mul_0_part(arg0_1, arg1_1, arg2_1, arg3_1, buf10, 0, units);
}
