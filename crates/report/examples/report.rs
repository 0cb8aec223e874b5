fn main() {
    let args: Vec<_> = std::env::args_os().skip(1).map(std::path::PathBuf::from).collect();
    let (out, runs) = args.split_last().expect("OUT");
    let start = std::time::Instant::now();
    let report = layerscope_report::Report::read(runs, Default::default()).expect("report");
    eprintln!("read {:?}", start.elapsed());
    for file in layerscope_report::render(&report, out).expect("render") {
        std::fs::create_dir_all(file.path.parent().unwrap()).unwrap();
        std::fs::write(&file.path, &file.bytes).expect("write");
        eprintln!("{} {} {:?}", file.path.display(), file.bytes.len(), start.elapsed());
    }
}
