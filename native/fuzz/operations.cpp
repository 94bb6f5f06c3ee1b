#include "operation_maker.h"

ggml_tensor * operation_maker::binary() {
    ggml_tensor * a = bent(any(d.one_in(4) ? GGML_TYPE_F16 : GGML_TYPE_F32));
    ggml_tensor * b = leaf(
        GGML_TYPE_F32, d.one_in(3) ? 1 : a->ne[0], d.one_in(2) ? 1 : a->ne[1], d.one_in(2) ? 1 : a->ne[2], a->ne[3]);
    switch (d.below(4)) {
    case 0:
        return ggml_add(ctx, a, b);
    case 1:
        return ggml_sub(ctx, a, b);
    case 2:
        return ggml_div(ctx, a, b);
    default:
        return ggml_mul(ctx, a, b);
    }
}

ggml_tensor * operation_maker::mul_mat() {
    const ggml_type type = weight();
    ggml_tensor * a = leaf(type, row(type), d.within(1, 40), n(), n());
    ggml_tensor * b = leaf(right(type), a->ne[0], d.within(1, 20), a->ne[2] * n(), a->ne[3] * d.within(1, 2));
    return ggml_mul_mat(ctx, a, b);
}

ggml_tensor * operation_maker::add_id() {
    ggml_tensor * a = leaf(GGML_TYPE_F32, wide(), n(), n());
    ggml_tensor * b = leaf(GGML_TYPE_F32, a->ne[0], d.within(1, 8));
    return ggml_add_id(ctx, a, b, ids(GGML_TYPE_I32, b->ne[1], a->ne[1], a->ne[2]));
}

ggml_tensor * operation_maker::get_rows() {
    const ggml_type type = d.one_in(5) ? GGML_TYPE_I32 : d.one_in(5) ? GGML_TYPE_BF16 : weight();
    ggml_tensor * a = leaf(type, row(type), d.within(1, 20), n(), n());
    return ggml_get_rows(ctx, a, ids(GGML_TYPE_I32, a->ne[1], d.within(1, 8), a->ne[2], a->ne[3]));
}

ggml_tensor * operation_maker::set_rows() {
    const ggml_type type =
        d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL });
    ggml_tensor * a = leaf(type, row(type), d.within(1, 20), n(), n());
    const bool half = type == GGML_TYPE_F16 && d.one_in(4);
    ggml_tensor * b = leaf(half ? GGML_TYPE_F16 : GGML_TYPE_F32, a->ne[0], d.within(1, 8), a->ne[2], a->ne[3]);
    return ggml_set_rows(ctx, a, b, ids(d.of({ GGML_TYPE_I64, GGML_TYPE_I32 }), a->ne[1], b->ne[1], 1, 1));
}

ggml_tensor * operation_maker::copy() {
    const ggml_type to = d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 });
    switch (d.below(6)) {
    case 0:
        return ggml_cast(ctx, any(floating()), d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }));
    case 1: {
        ggml_tensor * a = leaf(GGML_TYPE_F32, row(to), n(), n());
        return ggml_cpy(ctx, a, leaf(to, a->ne[0], a->ne[1], a->ne[2]));
    }
    case 2: {
        ggml_tensor * a = leaf(GGML_TYPE_Q8_0, 64, n(), n());
        return ggml_cast(ctx, a, GGML_TYPE_F32);
    }
    case 3:
        return ggml_cont(ctx, ggml_transpose(ctx, any()));
    case 4:
        return ggml_cast(
            ctx, d.one_in(2) ? any(GGML_TYPE_I32) : any(), d.of({ GGML_TYPE_F32, GGML_TYPE_F32, GGML_TYPE_F32 }));
    default:
        return ggml_cont(ctx, bent(any()));
    }
}

ggml_tensor * operation_maker::one_to_one() {
    ggml_tensor * a = any();
    switch (d.below(9)) {
    case 0:
        return ggml_sqr(ctx, a);
    case 1:
        return ggml_sqrt(ctx, a);
    case 2:
        return ggml_log(ctx, a);
    case 3:
        return ggml_sin(ctx, a);
    case 4:
        return ggml_cos(ctx, a);
    case 5:
        return ggml_scale_bias(ctx, a, 2.0f, d.one_in(2) ? 1.0f : 0.0f);
    case 6:
        return ggml_clamp(ctx, a, -1.0f, 1.0f);
    case 7:
        return ggml_xielu(ctx, a, 0.8f, 0.8f, 0.5f, -1e-6f);
    default:
        return ggml_scale_inplace(ctx, a, 0.5f);
    }
}

ggml_tensor * operation_maker::reduce() {
    ggml_tensor * a = any();
    switch (d.below(7)) {
    case 0:
        return ggml_sum(ctx, a);
    case 1:
        return ggml_sum_rows(ctx, bent(a));
    case 2:
        return ggml_mean(ctx, a);
    case 3:
        return ggml_cumsum(ctx, a);
    case 4:
        return ggml_argmax(ctx, ggml_reshape_2d(ctx, a, a->ne[0], ggml_nrows(a)));
    case 5:
        return ggml_argsort(ctx, a, d.of({ GGML_SORT_ORDER_ASC, GGML_SORT_ORDER_DESC }));
    default:
        return ggml_top_k(ctx, a, (int) d.within(1, a->ne[0]));
    }
}

ggml_tensor * operation_maker::shape() {
    ggml_tensor * a = any();
    const int64_t s = d.within(1, 12);
    switch (d.below(9)) {
    case 0:
        return ggml_repeat_4d(ctx, a, a->ne[0] * n(), a->ne[1] * n(), a->ne[2], a->ne[3]);
    case 1:
        return ggml_concat(ctx, a, leaf(GGML_TYPE_F32, a->ne[0], a->ne[1], n(), a->ne[3]), 2);
    case 2:
        return ggml_concat(ctx, leaf(GGML_TYPE_Q8_0, 64, 3, 2), leaf(GGML_TYPE_Q8_0, 32, 3, 2), 0);
    case 3:
        return ggml_pad(ctx, a, (int) d.below(4), (int) d.below(4), 0, (int) d.below(2));
    case 4:
        return ggml_tri(ctx, leaf(GGML_TYPE_F32, s, s, n()), (ggml_tri_type) d.below(4));
    case 5:
        return ggml_diag(ctx, leaf(GGML_TYPE_F32, s, 1, n()));
    case 6:
        return ggml_diag_mask_inf(ctx, a, (int) d.below(4));
    case 7:
        return ggml_arange(ctx, 0, (float) d.within(1, 50), 1);
    default:
        return d.one_in(2) ? ggml_fill(ctx, a, 1.0f) : ggml_fill_inplace(ctx, a, 1.0f);
    }
}

ggml_tensor * operation_maker::set() {
    ggml_tensor * a = leaf(GGML_TYPE_F32, d.within(2, 20), d.within(2, 6));
    return d.one_in(2) ? ggml_set_2d(ctx, a, leaf(GGML_TYPE_F32, a->ne[0] - 1, a->ne[1] - 1), a->nb[1], 4)
                       : ggml_set_2d_inplace(ctx, a, leaf(GGML_TYPE_F32, a->ne[0] - 1, 1), a->nb[1], a->nb[1]);
}

ggml_tensor * operation_maker::unary() {
    return ggml_unary(ctx,
        bent(any(d.one_in(3)   ? GGML_TYPE_F16
                 : d.one_in(5) ? GGML_TYPE_BF16
                               : GGML_TYPE_F32)),
        (ggml_unary_op) d.below(GGML_UNARY_OP_XIELU));
}

using make_fn = ggml_tensor * (operation_maker::*) ();

static const make_fn ALL[] = {
    &operation_maker::binary,
    &operation_maker::mul_mat,
    &operation_maker::mul_mat_id,
    &operation_maker::experts,
    &operation_maker::add_id,
    &operation_maker::get_rows,
    &operation_maker::set_rows,
    &operation_maker::copy,
    &operation_maker::rope,
    &operation_maker::soft_max,
    &operation_maker::flash_attn,
    &operation_maker::glu,
    &operation_maker::one_to_one,
    &operation_maker::norm,
    &operation_maker::reduce,
    &operation_maker::shape,
    &operation_maker::set,
    &operation_maker::convolution,
    &operation_maker::recurrent,
    &operation_maker::rare,
    &operation_maker::unary,
};

int n_operations() {
    return (int) (sizeof(ALL) / sizeof(ALL[0]));
}

ggml_tensor * make_operation(
    ggml_context * ctx, dice & d, int which, ggml_tensor * before, std::vector<index_tensor> & indices) {
    operation_maker m{ ctx, d, before, indices };
    return (m.*ALL[which])();
}
