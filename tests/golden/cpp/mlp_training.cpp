// relu_le_0: aten.relu.default, aten.le.Scalar
static void relu_le_0_part(float* __restrict buf1, bool* __restrict buf19, long begin, long end) {
  const long n = 40;
  const long lo = begin * 8, hi = end * 8 < n ? end * 8 : n;
  for (long i0 = lo; i0 < hi; i0 += 8) {
    const f32x8 t0 = load8(buf1 + i0, 8);
    const f32x8 t2 = max(t0, splat(f32x8{}, 0.0f));
    store8(buf1 + i0, t2, 8);
    const maskx8 t3 = (t2 <= 0.0f);
    store8(buf19 + i0, t3, 8);
  }
}

extern "C" void relu_le_0(float* __restrict buf1, bool* __restrict buf19) {
  const long units = 5;
  relu_le_0_part(buf1, buf19, 0, units);
}

// mul_add_sum_0: aten.mul.Tensor, aten.add.Tensor, aten.sum.dim_IntList
static void mul_add_sum_0_part(const float* __restrict buf4, float* __restrict buf10, float* __restrict buf16, long begin, long end) {
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit;
    f32x8 t2_all = {};
    f32x8 t2_all_carry = {};
    {
      for (long r0 = 0; r0 < 5; r0 += 8) {
        const long left = 5 - r0;
        const f32x8 t0 = load_strided8(buf4 + r0 * 3 + i0, 3, left);
        const f32x8 t1 = t0 + t0;
        store_strided8(buf10 + r0 * 3 + i0, 3, t1, left);
        t2_all += keep_f32(t1, left, 0.0f);
      }
    }
    const f32x8 t2 = fold_sum(t2_all);
    put8(buf16 + i0, t2[0]);
  }
}

extern "C" void mul_add_sum_0(const float* __restrict buf4, float* __restrict buf10, float* __restrict buf16) {
  const long units = 3;
  mul_add_sum_0_part(buf4, buf10, buf16, 0, units);
}

// where_sum_0: aten.where.self, aten.sum.dim_IntList
extern "C" void where_sum_0(const bool* __restrict buf19, float* __restrict buf12, float* __restrict buf25) {
  const long begin = 0, end = 1;
  for (long unit = begin; unit < end; ++unit) {
    const long i0 = unit * 8;
    f32x8 t4_all = {};
    f32x8 t4_all_carry = {};
    {
      for (long r0 = 0; r0 < 5; ++r0) {
        const maskx8 t0 = load8(buf19 + r0 * 8 + i0, 8);
        const f32x8 t2 = load8(buf12 + r0 * 8 + i0, 8);
        const f32x8 t3 = t0 ? splat(f32x8{}, 0.0f) : t2;
        store8(buf12 + r0 * 8 + i0, t3, 8);
        t4_all += t3;
      }
    }
    const f32x8 t4 = t4_all;
    store8(buf25 + i0, t4, 8);
  }
}
