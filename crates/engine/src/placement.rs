//! Where threads and memory are on a machine of many cores: threads each on a physical core, memory over all of its NUMA nodes.

use std::io;

/// The physical cores that this process may use, each with the processors that it may use of it.
///
/// # Errors
/// What the system says; [`io::ErrorKind::Unsupported`] elsewhere than on Linux.
#[cfg(target_os = "linux")]
pub(crate) fn cores() -> io::Result<Vec<Vec<usize>>> {
    let mut cores: Vec<(Vec<usize>, Vec<usize>)> = vec![];
    for processor in allowed()? {
        let list = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        // A system that tells nothing of siblings has none.
        let siblings = std::fs::read_to_string(list).map_or_else(|_| vec![processor], |list| numbers(&list));
        match cores.iter_mut().find(|(known, _)| *known == siblings) {
            Some((_, processors)) => processors.push(processor),
            None => cores.push((siblings, vec![processor])),
        }
    }
    Ok(cores.into_iter().map(|(_, processors)| processors).collect())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cores() -> io::Result<Vec<Vec<usize>>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The processors that this thread may use.
#[cfg(target_os = "linux")]
fn allowed() -> io::Result<Vec<usize>> {
    // SAFETY: a set of bits, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as long as is said.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: processors of the set alone are asked for.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) })
        .collect())
}

/// Keeps the calling thread on some processors.
///
/// # Errors
/// What the system says; [`io::ErrorKind::Unsupported`] elsewhere than on Linux.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(processors: &[usize]) -> io::Result<()> {
    // SAFETY: a set of bits, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &processor in processors.iter().filter(|&&processor| processor < libc::CPU_SETSIZE as usize) {
        // SAFETY: the processor is within the set.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    // SAFETY: the set is as long as is said.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(_: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Asks that the pages of memory that has not been written yet be taken from all NUMA nodes in turn, so that every core reads weights
/// at the speed of all of them together. Where there is one node, or the system takes no advice, nothing changes.
#[cfg(target_os = "linux")]
pub(crate) fn interleave_over_nodes(memory: &[u8]) {
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let nodes = numbers(&online);
    if nodes.len() > 1 {
        let _ = interleave(memory, &nodes);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn interleave_over_nodes(_: &[u8]) {}

#[cfg(target_os = "linux")]
fn interleave(memory: &[u8], nodes: &[usize]) -> io::Result<()> {
    const PAGE: usize = 4096;
    const MOST_NODES: usize = 1024;
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask = [0 as libc::c_ulong; MOST_NODES / BITS];
    for &node in nodes.iter().filter(|&&node| node < MOST_NODES) {
        mask[node / BITS] |= 1 << (node % BITS);
    }
    let ahead = memory.as_ptr().align_offset(PAGE).min(memory.len());
    let start = memory[ahead..].as_ptr();
    let len = (memory.len() - ahead) / PAGE * PAGE;
    // SAFETY: whole pages within the memory; where they will be taken from changes nothing that is in them.
    let said = unsafe {
        libc::syscall(libc::SYS_mbind, start, len, libc::MPOL_INTERLEAVE, mask.as_ptr(), MOST_NODES + 1, 0)
    };
    if said == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The numbers of a list such as `0-3,8,10-11`.
#[cfg(target_os = "linux")]
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?.min(1 << 16))
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(numbers("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(numbers("0"), [0]);
        assert!(numbers("").is_empty() && numbers("x-y,").is_empty());
        assert_eq!(numbers("0-18446744073709551615").len(), (1 << 16) + 1);
    }

    #[test]
    fn a_thread_stays_where_it_is_told_to() {
        let cores = cores().expect("cores");
        let all = allowed().expect("processors");
        let mut processors = cores.concat();
        processors.sort_unstable();
        assert_eq!(processors, all);
        let last = cores.last().expect("a core").clone();
        let told = last.clone();
        let stays =
            std::thread::spawn(move || stay_on(&told).and_then(|()| allowed())).join().expect("a thread");
        assert_eq!(stays.expect("processors"), last);
        assert_eq!(allowed().expect("processors"), all, "other threads go where they like");
        assert!(stay_on(&[]).is_err());
    }

    #[test]
    fn memory_is_as_it_was_wherever_it_lies() {
        let mut map = memmap2::MmapMut::map_anon(1 << 20).expect("memory");
        // A system may allow no such advice; then there is an error and nothing else.
        let _ = interleave(&map, &[0]);
        interleave_over_nodes(&map);
        map.fill(7);
        assert!(map.iter().all(|byte| *byte == 7));
        assert!(interleave(&map, &[]).is_err(), "no node");
    }
}
