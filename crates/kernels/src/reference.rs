//! Plain f64 versions of the kernels, to test against. Simple rather than fast.

use crate::attention::{AttentionShape, KeySpan, Queries, SEGMENTS, SparseKeys};

/// Σ a_i·b_i and Σ |a_i·b_i|.
pub fn dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    a.iter().zip(b).fold((0.0, 0.0), |(sum, size), (&a, &b)| {
        let product = f64::from(a) * f64::from(b);
        (sum + product, size + product.abs())
    })
}

/// The result of [`attention`]; `rows` queries, `H` query heads.
#[derive(Debug, Clone)]
pub struct ReferenceAttention {
    /// Attention output, `[rows, H, head_dim]`.
    pub output: Vec<f64>,
    /// Probabilities, `[rows, H]` lists of (key position, probability) over the visible keys.
    pub probabilities: Vec<Vec<(usize, f64)>>,
    /// Mass on each segment, `[rows, H, segments]`.
    pub mass: Vec<[f64; SEGMENTS]>,
    /// Entropy within each segment in nats, `[rows, H, segments]`; NaN where the segment has no mass.
    pub entropy: Vec<[f64; SEGMENTS]>,
}

/// Attention in which rows read what `sparse` says of `keys`, which are those of all positions: `[rows, query_heads, head_dim]`.
pub fn sparse_attention(
    shape: &AttentionShape,
    queries: &Queries<'_>,
    keys: &KeySpan<'_>,
    sparse: &SparseKeys,
) -> Vec<f64> {
    let (dim, group) = (shape.head_dim, shape.query_heads / shape.kv_heads);
    let mut output = vec![];
    for (index, query) in queries.data.chunks_exact(dim).take(queries.rows * shape.query_heads).enumerate() {
        let (row, head) = (index / shape.query_heads, index % shape.query_heads);
        let position = queries.first_position + row;
        let start = keys.start_of(head / group).unwrap_or_default();
        let one = |key: usize| KeySpan {
            first_head: 0,
            heads: 1,
            keys: keys.keys.from_index(start + key * dim),
            values: keys.values.from_index(start + key * dim),
            len: 1,
            first_position: key,
            ..*keys
        };
        let spans: Vec<KeySpan<'_>> =
            (0..=position).filter(|&key| sparse.reads(head, row, key)).map(one).collect();
        let shape = AttentionShape { query_heads: 1, kv_heads: 1, ..*shape };
        let query = Queries { data: query, rows: 1, first_position: position };
        output.extend(attention(&shape, &query, &spans).output);
    }
    output
}

/// softmax(cap(q·kᵀ·scale))·v over the visible keys of all spans, one query and head at a time.
pub fn attention(shape: &AttentionShape, queries: &Queries<'_>, spans: &[KeySpan<'_>]) -> ReferenceAttention {
    let dim = shape.head_dim;
    let group = shape.query_heads / shape.kv_heads;
    let mut result =
        ReferenceAttention { output: vec![], probabilities: vec![], mass: vec![], entropy: vec![] };
    for row in 0..queries.rows {
        let position = queries.first_position + row;
        for head in 0..shape.query_heads {
            let q = &queries.data[(row * shape.query_heads + head) * dim..][..dim];
            let offset = |span: &KeySpan<'_>, key: usize| Some(span.start_of(head / group)? + key * dim);
            let mut scored = vec![];
            for span in spans {
                for key in 0..span.len {
                    let key_position = span.first_position + key;
                    let in_window = |window| position - key_position < window;
                    let visible = key_position <= position
                        && (shape.window.is_none_or(in_window) || key_position < shape.sinks);
                    if let Some(start) = offset(span, key).filter(|_| visible) {
                        let k = span.keys.to_f32(start..start + dim);
                        let product: f64 = q.iter().zip(&k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                        let score = product * f64::from(shape.scale);
                        let capped =
                            shape.soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh());
                        scored.push((span, key, start, capped));
                    }
                }
            }
            let max = scored.iter().map(|s| s.3).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scored.iter().map(|s| (s.3 - max).exp()).sum();
            // 0/0 where there is no key. f64::max passes over NaN, but the sum does not.
            let nothing = 0.0 / total;
            let mut output = vec![nothing; dim];
            let mut mass = [nothing; SEGMENTS];
            let mut probabilities = vec![];
            for &(span, key, start, score) in &scored {
                let probability = (score - max).exp() / total;
                mass[span.segment as usize] += probability;
                probabilities.push((span.first_position + key, probability));
                for (o, v) in output.iter_mut().zip(span.values.to_f32(start..start + dim)) {
                    *o += probability * f64::from(v);
                }
            }
            let mut entropy = mass.map(|m| if m > 0.0 { 0.0 } else { f64::NAN });
            for (&(span, ..), &(_, probability)) in scored.iter().zip(&probabilities) {
                let share = probability / mass[span.segment as usize];
                if share > 0.0 {
                    entropy[span.segment as usize] -= share * share.ln();
                }
            }
            result.output.extend(output);
            result.probabilities.push(probabilities);
            result.mass.push(mass);
            result.entropy.push(entropy);
        }
    }
    result
}

/// ln softmax of a row of logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(f64::from(x)));
    let total: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    logits.iter().map(|&x| f64::from(x) - max - total.ln()).collect()
}

/// KL(p ‖ q) in nats between the distributions of two rows of logits.
pub fn kl_divergence(p_logits: &[f32], q_logits: &[f32]) -> f64 {
    let (p, q) = (log_softmax(p_logits), log_softmax(q_logits));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}
