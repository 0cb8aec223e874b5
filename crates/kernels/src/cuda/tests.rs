#![allow(clippy::unwrap_used)]

use super::{Buffer, Device, DeviceError, Element, Gemm, Numbers, Pool};

fn add(a: &Buffer, b: &Buffer, output: &Buffer) -> Result<(), DeviceError> {
    let [a, b, output] = [a, b, output].map(|buffer| Numbers::all(buffer, Element::F32));
    crate::elementwise::cuda::add(a, b, output)
}

#[test]
fn memory_goes_there_and_back_and_is_used_again() {
    let device = Device::for_tests();
    let buffer = device.upload(&[1f32, 2.0, 3.0]).unwrap();
    assert_eq!(buffer.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert!(buffer.write(8, &[1f32, 2.0]).is_err());
    let address = buffer.address();
    drop(buffer);
    assert_eq!(device.allocate(12).unwrap().address(), address);
    let taken = device.allocated_bytes();
    let kept = device.reserve(1000).unwrap();
    assert_eq!(device.allocated_bytes(), taken + 1000);
    drop(kept);
    assert_eq!((device.allocated_bytes(), device.peak_bytes()), (taken, taken + 1000));
    assert!(matches!(device.reserve(1 << 40), Err(DeviceError::OutOfMemory { .. })));
}

#[test]
fn a_graph_runs_again_in_memory_of_its_own() {
    let device = Device::for_tests();
    let (one, total) = (device.upload(&[1f32; 100]).unwrap(), device.upload(&[0f32; 100]).unwrap());
    let memory = Pool::new(&device);
    let work = || {
        let doubled = device.allocate(400)?;
        add(&one, &one, &doubled)?;
        add(&total, &doubled, &total)?;
        Ok::<_, DeviceError>(doubled)
    };
    assert!(device.capture(&memory, work).is_err(), "memory is taken beforehand");
    drop(device.with_memory(&memory, work).unwrap());
    let (graph, doubled) = device.capture(&memory, work).unwrap();
    assert_eq!(total.to_vec::<f32>().unwrap(), [2.0; 100], "capturing runs nothing");
    let other = device.upload(&[7f32; 100]).unwrap();
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(total.to_vec::<f32>().unwrap(), [6.0; 100]);
    assert_eq!(doubled.to_vec::<f32>().unwrap(), [2.0; 100]);
    assert_eq!(other.to_vec::<f32>().unwrap(), [7.0; 100]);
}

#[test]
fn memory_of_a_graph_goes_back_with_the_last_that_has_it() {
    // On a GPU others take memory meanwhile.
    let device = Device::emulated();
    let memory = Pool::new(&device);
    let one = device.upload(&[1f32; 100]).unwrap();
    let work = || {
        let doubled = device.allocate(400)?;
        add(&one, &one, &doubled)?;
        Ok::<_, DeviceError>(doubled)
    };
    drop(device.with_memory(&memory, work).unwrap());
    let (graph, doubled) = device.capture(&memory, work).unwrap();
    let free = || device.memory().unwrap().0;
    let before = free();
    drop((graph, memory));
    assert_eq!(free(), before, "what the work returned is still there");
    drop(doubled);
    assert_eq!(free(), before + 400);
}

#[test]
fn where_memory_runs_out_graphs_keep_theirs() {
    let device = Device::for_tests();
    let memory = Pool::new(&device);
    let (one, total) = (device.upload(&[1f32; 100]).unwrap(), device.upload(&[0f32; 100]).unwrap());
    let work = || {
        let doubled = device.allocate(400)?;
        add(&one, &one, &doubled)?;
        add(&total, &doubled, &total)
    };
    device.with_memory(&memory, work).unwrap();
    let (graph, ()) = device.capture(&memory, work).unwrap();
    let more = device.with_memory(&memory, || device.allocate(1 << 42));
    assert!(matches!(more, Err(DeviceError::OutOfMemory { .. })));
    graph.launch().unwrap();
    assert_eq!(total.to_vec::<f32>().unwrap(), [4.0; 100]);
}

#[test]
fn a_panic_leaves_the_device_as_it_was() {
    let device = Device::for_tests();
    let memory = Pool::new(&device);
    let panics = |work: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
    assert!(panics(&|| device.with_memory(&memory, || panic!("on purpose"))));
    assert!(panics(&|| drop(device.capture::<(), DeviceError>(&memory, || panic!("on purpose")))));
    let buffer = device.upload(&[1f32, 2.0]).unwrap();
    assert_eq!(buffer.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    drop(buffer);
    assert_eq!(memory.waiting_bytes(), 0, "that came from the device's own pool");
}

#[test]
fn a_graph_keeps_its_device() {
    let device = Device::for_tests();
    let weak = device.downgrade();
    let nothing = || Ok::<_, DeviceError>(());
    let (graph, ()) = device.capture(&Pool::new(&device), nothing).unwrap();
    drop(device);
    graph.launch().unwrap();
    assert!(weak.upgrade().is_some());
    drop(graph);
    assert!(weak.upgrade().is_none());
}

#[test]
fn products_are_row_by_row() {
    let device = Device::for_tests();
    let x = device.upload(&[1f32, 2.0, 3.0, 4.0]).unwrap();
    let weights = device.upload(&[1f32, 0.0, 0.0, 1.0, 1.0, 1.0]).unwrap();
    let output = device.upload(&[10f32; 6]).unwrap();
    let product = Gemm {
        x: x.address(),
        weights: weights.address(),
        inputs_in: Element::F32,
        output: output.address(),
        output_in: Element::F32,
        output_stride: 3,
        rows: 2,
        inputs: 2,
        outputs: 3,
        accumulate: true,
    };
    // SAFETY: the buffers are of these sizes.
    unsafe { device.multiply(&product).unwrap() };
    assert_eq!(output.to_vec::<f32>().unwrap(), [11.0, 12.0, 13.0, 13.0, 14.0, 17.0]);
}

#[test]
fn what_is_wrong_with_a_launch_is_said() {
    // A GPU would run it.
    let device = Device::emulated();
    // SAFETY: nothing of this runs.
    let unknown = unsafe { device.launch("nothing", [1; 3], 32, 0, &0u64) }.unwrap_err();
    assert!(unknown.to_string().contains("none of that name"));
    // SAFETY: as above.
    let misshapen = unsafe { device.launch("add_f32", [1; 3], 32, 0, &0u64) }.unwrap_err();
    assert!(misshapen.to_string().contains("another size"));
}
