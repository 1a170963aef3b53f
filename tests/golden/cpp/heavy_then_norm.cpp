// mul_erf_add_tanh_exp_var_mean_sub_0: aten.mul.Tensor, aten.erf.default, aten.add.Tensor, aten.tanh.default, aten.exp.default, aten.var_mean.correction, aten.sub.Tensor
static void mul_erf_add_tanh_exp_var_mean_sub_0_part(const float* __restrict arg0_1, float* __restrict buf14, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    f32x8 t11_all = {};
    f32x8 t11_all_carry = {};
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t0 = load8(arg0_1 + i0 * 16 + r0, 8);
        const f32x8 t2 = t0 * 0.5f;
        const f32x8 t4 = t0 * 0.7071067690849304f;
        const f32x8 t5 = erf(t4);
        const f32x8 t7 = t5 + 1.0f;
        const f32x8 t8 = t2 * t7;
        const f32x8 t9 = tanh(t8);
        const f32x8 t10 = exp(t9);
        store8(buf14 + i0 * 16 + r0, t10, 8);
        t11_all += t10;
      }
    }
    const f32x8 t11 = fold_sum(t11_all);
    const f32x8 t13 = t11 / 16.0f;
    f32x8 t17_all = {};
    f32x8 t17_all_carry = {};
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t14 = load8(buf14 + i0 * 16 + r0, 8);
        const f32x8 t15 = t14 - t13;
        const f32x8 t16 = t15 * t15;
        t17_all += t16;
      }
    }
    const f32x8 t17 = fold_sum(t17_all);
    const f32x8 t18 = t17 / 16.0f;
    const f32x8 t20 = t18 + 9.999999747378752e-06f;
    const f32x8 t21 = 1 / sqrt(t20);
    {
      for (long r0 = 0; r0 < 16; r0 += 8) {
        const f32x8 t22 = load8(buf14 + i0 * 16 + r0, 8);
        const f32x8 t23 = t22 - t13;
        const f32x8 t24 = t23 * t21;
        store8(buf14 + i0 * 16 + r0, t24, 8);
      }
    }
  }
}

extern "C" void mul_erf_add_tanh_exp_var_mean_sub_0(const float* __restrict arg0_1, float* __restrict buf14) {
  const long units = 4;
  mul_erf_add_tanh_exp_var_mean_sub_0_part(arg0_1, buf14, 0, units);
}
