use super::*;
use crate::cuda::Pool;

#[test]
fn a_captured_graph_follows_the_decoded_tokens() {
    let device = Device::for_tests();
    let (shape, dim, steps) = (problem(4, 2, 16, 40, 1).shape, 16, 200);
    let len = 40 + steps;
    let (keys, values, queries) = (noise(1, 2 * len * dim), noise(2, 2 * len * dim), noise(3, 4 * dim));
    let on_device = [&keys, &values, &queries].map(|numbers| device.upload(&numbers[..]).unwrap());
    let span = |first: usize, len_now: usize, segment: Segment, grows: u32| DeviceKeySpan {
        keys: on_device[0].address() + (first * dim * 4) as u64,
        values: on_device[1].address() + (first * dim * 4) as u64,
        head_stride: (len * dim) as u64,
        key_stride: dim as u64,
        copy_stride: 0,
        len: len_now as u32,
        first_position: first as u32,
        segment: segment as u32,
        grows,
        first_head: 0,
        heads: 2,
    };
    let spans = device.upload(&[span(0, 39, Segment::Prompt, 0), span(39, 1, Segment::Decode, 1)]).unwrap();
    let (positions, decoded) = (device.upload(&[39i32]).unwrap(), device.upload(&[0i32]).unwrap());
    let output = device.allocate(4 * dim * 4).unwrap();
    let a = SpanAttention {
        shape,
        queries: Numbers::all(&on_device[2], Element::F32),
        positions: &positions,
        rows: 1,
        spans: &spans,
        span_count: 2,
        keys_at_most: len,
        key_element: Element::F32,
        rows_per_copy: 1,
        visible_spans: None,
        decoded: Some(&decoded),
        output: Numbers::all(&output, Element::F32),
        statistics: None,
        normalisers: None,
    };
    let memory = Pool::new(&device);
    device.with_memory(&memory, || attention(&a)).unwrap();
    let (graph, ()) = device.capture(&memory, || attention(&a)).unwrap();
    for step in [0, 1, 5, 199] {
        positions.write(0, &[39 + step as i32]).unwrap();
        decoded.write(0, &[step as i32]).unwrap();
        graph.launch().unwrap();
        let span = KeySpan {
            keys: keys[..].into(),
            values: values[..].into(),
            first_head: 0,
            heads: 2,
            head_stride: len * dim,
            len: 40 + step,
            first_position: 0,
            segment: Segment::Prompt,
        };
        let row = Queries { data: &queries, rows: 1, first_position: 39 + step };
        let expected = reference::attention(&shape, &row, &[span]).output;
        for (x, e) in a.output.to_vec().unwrap().iter().zip(&expected) {
            assert!((f64::from(*x) - e).abs() < 1e-5, "{x} {e}");
        }
    }
}
