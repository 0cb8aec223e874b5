#![allow(clippy::unwrap_used)]

use crate::cuda::{Buffer, Device, DeviceError, Element, Gemm, Pool};
use std::process::Command;

/// In whose presence a test does what ends its process.
const WANTED: &str = "LAYERSCOPE_TEST_FAULT";

/// As of `elementwise.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ElementwiseParameters {
    addresses: [u64; 3],
    elements: u64,
    packs: u64,
    number: f32,
    activation: u32,
}

/// Copies so many numbers, four at a time where `packed`, from so many bytes behind the start of a buffer of 512 bytes.
fn copy(device: &Device, elements: u64, packed: bool, offset: i64) {
    let [from, to] = [0; 2].map(|_| device.reserve(512).unwrap());
    let first = from.address().wrapping_add_signed(offset);
    let parameters = ElementwiseParameters {
        addresses: [first, first, to.address()],
        elements,
        packs: if packed { elements / 4 } else { 0 },
        number: 0.0,
        activation: 0,
    };
    // SAFETY: not at all, which is the point.
    unsafe { device.launch("convert_f32_f32", [1; 3], 32, 0, &parameters).unwrap() };
}

/// What a process says that runs this test alone, and does what it is not to.
fn last_words(test: &str, fault: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("cuda::emulator::tests::{test}"), "--nocapture", "--test-threads=1"])
        .env(WANTED, fault)
        .output()
        .unwrap();
    assert!(!output.status.success(), "{fault} goes on");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_kernel_that_reaches_beyond_its_memory_is_named() {
    let device = Device::emulated();
    match std::env::var(WANTED).as_deref() {
        Ok("read") => copy(&device, 129, false, 0),
        Ok("read before") => copy(&device, 1, false, -4096),
        Ok("shared") => {
            // A norm without the shared memory that its sums need.
            let x = device.reserve(4096).unwrap();
            let address = x.address();
            let parameters = [address, address, 0, address, 1, 1024, 0];
            // SAFETY: as above.
            unsafe { device.launch("rms_norm_f32_f32", [1; 3], 64, 0, &parameters).unwrap() };
        }
        Ok("unaligned") => copy(&device, 8, true, 4),
        Ok(_) => {}
        Err(_) => {
            copy(&device, 128, true, 0);
            let test = "a_kernel_that_reaches_beyond_its_memory_is_named";
            for fault in ["read", "read before"] {
                let words = last_words(test, fault);
                assert!(
                    words.contains("kernel convert_f32_f32: thread 0 of block 0, 0, 0 reaches"),
                    "{words}"
                );
            }
            let words = last_words(test, "shared");
            assert!(words.contains("kernel rms_norm_f32_f32") && words.contains("reaches beyond"), "{words}");
            let words = last_words(test, "unaligned");
            assert!(words.contains("kernel convert_f32_f32") && words.contains("not aligned"), "{words}");
        }
    }
}

#[test]
fn what_lies_behind_a_buffer_is_nan_and_must_stay() {
    let device = Device::emulated();
    let [from, to] = [100usize, 512].map(|bytes| device.reserve(bytes).unwrap());
    let mut parameters = ElementwiseParameters {
        addresses: [from.address(), from.address(), to.address()],
        elements: 64,
        packs: 0,
        number: 0.0,
        activation: 0,
    };
    from.write(0, &[1f32; 25]).unwrap();
    // SAFETY: not at all, which is the point; up to 256 bytes nothing ends the process.
    unsafe { device.launch("convert_f32_f32", [1; 3], 32, 0, &parameters).unwrap() };
    let copied = to.to_vec::<f32>().unwrap();
    assert!(copied[..25].iter().all(|&x| x == 1.0) && copied[25..].iter().all(|x| x.is_nan()));
    parameters.addresses = [to.address(), to.address(), from.address()];
    to.clear().unwrap();
    // SAFETY: as above.
    unsafe { device.launch("convert_f32_f32", [1; 3], 32, 0, &parameters).unwrap() };
    let freed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(from)));
    assert!(freed.is_err(), "something was written behind it");
}

#[test]
fn memory_that_is_used_again_is_nan_again() {
    let device = Device::emulated();
    let address = device.upload(&[1f32; 3]).unwrap().address();
    let again = device.allocate(12).unwrap();
    assert_eq!(again.address(), address);
    assert!(again.to_vec::<f32>().unwrap().iter().all(|x| x.is_nan()));
}

#[test]
fn a_block_has_as_much_shared_memory_as_on_that_gpu() {
    for (capability, kibibytes) in [((8, 0), 163), ((8, 6), 99), ((9, 0), 227), ((12, 0), 99)] {
        let device = Device::emulated_as(capability);
        let parameters = [0u64; 7];
        // SAFETY: of no rows nothing is touched.
        let launch = |bytes| unsafe { device.launch("rms_norm_f32_f32", [1; 3], 32, bytes, &parameters) };
        launch(kibibytes << 10).unwrap();
        assert!(launch((kibibytes << 10) + 1).unwrap_err().to_string().contains("more shared memory"));
    }
}

#[test]
fn what_spoils_a_graph_is_said() {
    let device = Device::emulated();
    let (memory, kept) = (Pool::new(&device), device.reserve(8).unwrap());
    let spoilt = |work: &mut dyn FnMut()| {
        let graph = device.capture(&memory, || {
            work();
            Ok::<_, DeviceError>(())
        });
        graph.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let mut kept: Option<Buffer> = Some(kept);
    assert!(spoilt(&mut || drop(kept.take())).contains("given back while a graph is captured"));
    assert!(spoilt(&mut || assert!(device.synchronize().is_err())).contains("waited for"));
    assert_eq!(spoilt(&mut || ()), "");
}

#[test]
fn products_that_cublas_does_not_have_are_refused() {
    let device = Device::emulated();
    let numbers = device.upload(&[1f32; 4]).unwrap();
    let product = Gemm {
        x: numbers.address(),
        weights: numbers.address(),
        inputs_in: Element::F32,
        output: numbers.address(),
        output_in: Element::Bf16,
        output_stride: 1,
        rows: 1,
        inputs: 1,
        outputs: 1,
        accumulate: false,
    };
    // SAFETY: the buffer is long enough.
    assert!(unsafe { device.multiply(&product) }.is_err());
}
