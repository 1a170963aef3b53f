// mul_add_sqrt_div_sub_0: aten.mul.Tensor, aten.add.Tensor, aten.sqrt.default, aten.div.Tensor, aten.sub.Tensor
static void mul_add_sqrt_div_sub_0_part(const float* __restrict arg2_1, const float* __restrict arg1_1, const float* __restrict arg3_1, const float* __restrict arg0_1, float* __restrict buf2, float* __restrict buf6, float* __restrict buf11, long begin, long end) {
  const long n = 48;
  const long lo = begin * 8, hi = end * 8 < n ? end * 8 : n;
  for (long i0 = lo; i0 < hi; i0 += 8) {
    const f32x8 t0 = load8(arg2_1 + i0, 8);
    const f32x8 t2 = t0 * 0.8999999761581421f;
    const f32x8 t3 = load8(arg1_1 + i0, 8);
    const f32x8 t5 = t3 * 0.10000000149011612f;
    const f32x8 t6 = t2 + t5;
    store8(buf2 + i0, t6, 8);
    const f32x8 t7 = load8(arg3_1 + i0, 8);
    const f32x8 t9 = t7 * 0.9900000095367432f;
    const f32x8 t10 = t3 * t3;
    const f32x8 t12 = t10 * 0.009999999776482582f;
    const f32x8 t13 = t9 + t12;
    store8(buf6 + i0, t13, 8);
    const f32x8 t14 = load8(arg0_1 + i0, 8);
    const f32x8 t16 = t6 * 0.0010000000474974513f;
    const f32x8 t17 = sqrt(t13);
    const f32x8 t19 = t17 + 9.99999993922529e-09f;
    const f32x8 t20 = t16 / t19;
    const f32x8 t21 = t14 - t20;
    store8(buf11 + i0, t21, 8);
  }
}

extern "C" void mul_add_sqrt_div_sub_0(const float* __restrict arg2_1, const float* __restrict arg1_1, const float* __restrict arg3_1, const float* __restrict arg0_1, float* __restrict buf2, float* __restrict buf6, float* __restrict buf11) {
  const long units = 6;
  mul_add_sqrt_div_sub_0_part(arg2_1, arg1_1, arg3_1, arg0_1, buf2, buf6, buf11, 0, units);
}
