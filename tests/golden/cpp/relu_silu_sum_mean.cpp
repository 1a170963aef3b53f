// sigmoid_mul_sum_0: aten.sigmoid.default, aten.mul.Tensor, aten.sum.dim_IntList
static void sigmoid_mul_sum_0_part(const float* __restrict arg0_1, float* __restrict buf3, long s75, long s96, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    f32x8 t5_all = {};
    f32x8 t5_all_carry = {};
    {
      for (long r0_tile = 0; r0_tile < s96; r0_tile += 1024) {
        const long r0_end = r0_tile + 1024 < s96 ? r0_tile + 1024 : s96;
        f32x8 t5_all_tile = {};
        for (long r0 = r0_tile; r0 < r0_end; r0 += 8) {
          const long left = s96 - r0;
          const f32x8 t0 = load8(arg0_1 + i0 * s96 + r0, left);
          const f32x8 t2 = max(t0, splat(f32x8{}, 0.0f));
          const f32x8 t3 = sigmoid(t2);
          const f32x8 t4 = t2 * t3;
          t5_all_tile += keep_f32(t4, left, 0.0f);
        }
        t5_all = add_carry(t5_all, t5_all_tile, &t5_all_carry);
      }
    }
    const f32x8 t5 = fold_sum(t5_all);
    put8(buf3 + i0, t5[0]);
  }
}

extern "C" void sigmoid_mul_sum_0(const float* __restrict arg0_1, float* __restrict buf3, long s75, long s96) {
  const long units = s75;
  if ((s75 * s96 * 4) < 32768) return sigmoid_mul_sum_0_part(arg0_1, buf3, s75, s96, 0, units);
  auto work = [&](long thread, long threads) {
    sigmoid_mul_sum_0_part(arg0_1, buf3, s75, s96, units * thread / threads, units * (thread + 1) / threads);
  };
  parallel(work);
}

// mean_0: aten.mean.default
extern "C" void mean_0(const float* __restrict buf3, float* __restrict buf4, long s75) {
  f32x8 t1_all = {};
  f32x8 t1_all_carry = {};
  {
    for (long r0_tile = 0; r0_tile < s75; r0_tile += 1024) {
      const long r0_end = r0_tile + 1024 < s75 ? r0_tile + 1024 : s75;
      f32x8 t1_all_tile = {};
      for (long r0 = r0_tile; r0 < r0_end; r0 += 8) {
        const long left = s75 - r0;
        const f32x8 t0 = load8(buf3 + r0, left);
        t1_all_tile += keep_f32(t0, left, 0.0f);
      }
      t1_all = add_carry(t1_all, t1_all_tile, &t1_all_carry);
    }
  }
  const f32x8 t1 = fold_sum(t1_all);
  const i64x8 t2 = splat(i64x8{}, s75);
  const f32x8 t3 = __builtin_convertvector(t2, f32x8);
  const f32x8 t4 = t1 / t3;
  put8(buf4, t4[0]);
}
