// exp_sum_0: aten.exp.default, aten.sum.dim_IntList
static void exp_sum_0_part(const float* __restrict arg0_1, float* __restrict buf0, float* __restrict buf2, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    f32x8 t2_all = {};
    f32x8 t2_all_carry = {};
    {
      for (long r0 = 0; r0 < 8; r0 += 8) {
        const f32x8 t0 = load8(arg0_1 + i0 * 8 + r0, 8);
        const f32x8 t1 = exp(t0);
        store8(buf0 + i0 * 8 + r0, t1, 8);
        t2_all += t1;
      }
    }
    const f32x8 t2 = fold_sum(t2_all);
    put8(buf2 + i0, t2[0]);
  }
}

extern "C" void exp_sum_0(const float* __restrict arg0_1, float* __restrict buf0, float* __restrict buf2) {
  const long units = 6;
  exp_sum_0_part(arg0_1, buf0, buf2, 0, units);
}

// sum_0: aten.sum.dim_IntList
extern "C" void sum_0(const float* __restrict buf0, float* __restrict buf1) {
  const long begin = 0, end = 1;
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit * 8;
    f32x8 t1_all = {};
    f32x8 t1_all_carry = {};
    {
      for (long r0 = 0; r0 < 6; ++r0) {
        const f32x8 t0 = load8(buf0 + r0 * 8 + i0, 8);
        t1_all += t0;
      }
    }
    const f32x8 t1 = t1_all;
    store8(buf1 + i0, t1, 8);
  }
}
