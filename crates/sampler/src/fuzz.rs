//! Entry points for `fuzz/`: parsers that are private to this crate.

use std::path::Path;

use nearpage_perf_abi::{AuxStretch, Sideband, header};
use nearpage_recording::AccessKind;
use nearpage_wire::samples::{HEADER_BYTES, Header, SLOT_BYTES, Slot};

use crate::aarch64;
use crate::calibrate::SkidSide;
use crate::cgroup;
use crate::follower::Follower;
use crate::image::Image;
use crate::instruction::{Code, Decode};
use crate::judge::Judge;
use crate::merge::{UnreadRecords, Window};
use crate::pmu::{Device, Field, Form, spe};
use crate::processes::{Mapping, Stat};
use crate::record::{self, Identifiers, Origin, RecordBody};
use crate::signal::Process;
use crate::verdict::{REGISTERS, Verdict};
use crate::x86_64;

/// Follows the records in a ring's `bytes`, except clock samples, which read code from the system.
pub fn ring(bytes: &[u8]) {
    let identifiers = Identifiers {
        faults: vec![8],
        ..Identifiers::default()
    };
    let mut follower = Follower::new(SkidSide::Before, identifiers.clone());
    let mut window = Window::default();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut unread = [UnreadRecords::new([first, second])];
    window.take(u64::MAX, &mut unread, |bytes| {
        match record::parse(bytes, &identifiers) {
            Ok(record) if matches!(record.body, RecordBody::Sample(_)) => {}
            _ => follower.follow(bytes),
        }
    });
}

/// Follows hardware samples with bodies from `bytes`, in each form, cut to length.
pub fn memory_samples(bytes: &[u8]) {
    for (id, form) in [
        (7, Form::Precise(AccessKind::Load)),
        (9, Form::Precise(AccessKind::Store)),
        (11, Form::Ibs),
    ] {
        let identifiers = Identifiers {
            memory: vec![(id, form)],
            ..Identifiers::default()
        };
        let mut follower = Follower::new(SkidSide::Before, identifiers);
        for body in bytes.chunks(160) {
            let mut body = body.to_vec();
            if let Some(id_bytes) = body.first_chunk_mut::<8>() {
                *id_bytes = u64::to_le_bytes(id);
            }
            let mut record = Vec::new();
            header::append_user_sample(&mut record, &body);
            follower.follow(&record);
        }
        let counts = follower.threads.all().iter().map(|thread| thread.counts);
        let [accesses, others] = counts.fold([0, 0], |[accesses, others], counts| {
            [
                accesses + counts.accesses,
                others + counts.compute + counts.undecoded,
            ]
        });
        assert_eq!(follower.accesses.len() as u64, accesses);
        let chunks = bytes.chunks(160).len() as u64;
        assert_eq!(accesses + others + follower.records.malformed, chunks);
    }
}

/// Follows the ring `bytes` of a process that samples itself, and its mappings `text`. Samples themselves are left
/// out, as they read code from the system.
pub fn signal_samples(bytes: &[u8], text: &[u8]) {
    let Some(header) = Header::parse(bytes, u64::MAX) else {
        return;
    };
    let mut records = Vec::new();
    let mut process = Process::begin(&header, false, &mut records);
    process.map(1, text, &mut records);
    let slots = bytes.get(HEADER_BYTES..).unwrap_or_default();
    for slot in slots.chunks(SLOT_BYTES).filter_map(Slot::parse) {
        process.knows_code(&slot);
        process.append(&slot, &mut records);
    }
    process.end(2, false, &mut records);
    let identifiers = Identifiers::default();
    let mut follower = Follower::new(SkidSide::Before, identifiers.clone());
    let mut window = Window::default();
    window.add(|out| out.extend_from_slice(&records));
    window.take(u64::MAX, &mut [], |bytes| {
        match record::parse(bytes, &identifiers) {
            Ok(record) if matches!(record.body, RecordBody::Sample(_)) => {}
            _ => follower.follow(bytes),
        }
    });
    assert_eq!((window.malformed, follower.records.malformed), (0, 0));
}

/// Decodes `bytes` as the packets of one stretch of an AUX area.
pub fn spe_packets(bytes: &[u8]) {
    let mut operations = 0;
    let bad = spe::decode(bytes, |_| operations += 1);
    assert!(bad as usize + operations <= bytes.len());
    let mut records = Vec::new();
    let stretch = AuxStretch {
        offset: 0,
        bytes: bytes.len() as u64,
        incomplete: false,
    };
    Origin::new(12, 12, 99).append(Sideband::Aux(stretch), &mut records);
    let end = records.len();
    spe::append_samples(&mut records, 0..end, 7, 4096, |_, out| {
        out.extend_from_slice(bytes);
    });
    let identifiers = Identifiers {
        memory: vec![(7, Form::Precise(AccessKind::Load))],
        ..Identifiers::default()
    };
    let mut follower = Follower::new(SkidSide::Before, identifiers);
    let mut window = Window::default();
    window.add(|out| out.extend_from_slice(&records));
    window.take(u64::MAX, &mut [], |record| {
        follower.follow(record);
    });
    assert_eq!((window.malformed, follower.records.malformed), (0, 0));
}

/// Judges a sample at `at` in x86 code `bytes`, at both ends of the address space.
pub fn code(bytes: &[u8], at: usize) {
    judge::<x86_64::Decoder>(bytes, at);
}

/// Judges a sample at `at` in AArch64 code `bytes`.
pub fn aarch64_code(bytes: &[u8], at: usize) {
    judge::<aarch64::Decoder>(bytes, at);
}

fn judge<D: Decode + Default>(bytes: &[u8], at: usize) {
    for (address, bitness) in [
        (0x40_1000, 64),
        (u64::MAX - 100, 64),
        (0x40_1000, 32),
        (0, 64),
    ] {
        let code = Code {
            address,
            bytes,
            bitness,
        };
        for first in [Some(0), D::converge(code, at)].into_iter().flatten() {
            let flow = D::sweep(code, first);
            for side in [SkidSide::Before, SkidSide::At, SkidSide::Block] {
                let verdict = Judge::<D>::default().judge(code, &flow, at, side);
                if let Verdict::Accesses { templates, .. } = verdict {
                    assert!(!templates.is_empty());
                    for template in &templates {
                        template.address(&[u64::MAX; REGISTERS]);
                    }
                }
            }
        }
    }
}

/// Parses `text` as a line or file of the kernel: `/proc/PID/stat`, `maps`, `mountinfo`, or the format of a PMU.
/// `text` is both the format file and an event to configure.
pub fn kernel_text(text: &str) {
    if let Some(stat) = Stat::parse(text) {
        assert!(text.contains(&stat.name));
    }
    for mapping in Mapping::all(text.as_bytes()) {
        assert!(mapping.begin < mapping.end && !mapping.path.is_empty());
    }
    cgroup::mount_point(text.as_bytes());
    let (format, terms) = text.split_once('\n').unwrap_or((text, "a=1"));
    let device = Device {
        format: Field::parse(format)
            .map(|field| ("a".to_owned(), field))
            .into_iter()
            .collect(),
        ..Device::default()
    };
    let _ = device.config(terms);
}

/// Looks for code throughout the file at `path`.
pub fn module(path: &Path) {
    let Some(mut image) = Image::open(path) else {
        return;
    };
    for at in (0..4096).step_by(256).chain([u64::MAX - 2000, u64::MAX]) {
        if let Some(stretch) = image.stretch(at) {
            assert!(stretch.begin <= at);
        }
    }
}
