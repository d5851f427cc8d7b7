use super::*;
use crate::place::memory::zeroed;
use crate::plan::plan_file::{Tables, bytes, module};
use proptest::prelude::*;
use std::vec::Vec;

#[test]
fn build_ids_are_found_among_other_notes() {
    let mut notes = Vec::new();
    for (kind, name, id) in [
        (1u32, &b"Linux\0"[..], &[0u8; 6][..]),
        (3, b"GNU\0", &[7, 8, 9]),
    ] {
        for word in [name.len() as u32, id.len() as u32, kind] {
            notes.extend_from_slice(&word.to_le_bytes());
        }
        notes.extend_from_slice(name);
        notes.resize(notes.len().next_multiple_of(4), 0);
        notes.extend_from_slice(id);
        notes.resize(notes.len().next_multiple_of(4), 0);
    }
    assert_eq!(build_id(&notes, 4), Some(&[7, 8, 9][..]));
    assert_eq!(build_id(&notes[..20], 4), None);
    assert_eq!(build_id(&[0xff; 64], 4), None);
}

proptest! {
    #[test]
    fn notes_never_panic(notes in proptest::collection::vec(any::<u8>(), 0..100), align in 0usize..16) {
        build_id(&notes, align);
    }
}

#[test]
fn this_process_is_found() {
    static OBJECT: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
    let mut names = Vec::new();
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().as_encoded_bytes();
    let modules = std::vec![
        module(&mut names, &[], b"other"),
        module(&mut names, &[], name)
    ];
    let words = Tables {
        modules,
        names,
        ..Tables::default()
    }
    .encode();
    let plan = Plan::parse(bytes(&words)).unwrap();
    let table = zeroed::<Modules>().unwrap();
    let mut new = 0;
    table.refresh(&plan, |_| new += 1);
    assert!(new >= 2, "the program and the C library");
    let place = table.find((&raw const OBJECT).addr()).unwrap();
    assert!(place.module.is(1) && !place.module.is(0) && !place.module.is_runtime());
    assert_eq!(
        place.module.address(place.file_address, 16),
        Some((&raw const OBJECT).addr())
    );
    assert_eq!(place.module.address(u64::MAX, 16), None);
    assert!(core::ptr::eq(place.module, table.executable().unwrap()));
    assert!(!place.module.identity().build_id.is_empty() || cfg!(not(target_env = "gnu")));
    let libc = table.find(dl_iterate_phdr as *const () as usize).unwrap();
    assert!(libc.module.is_runtime());
    assert!(table.find(16).is_none());
    let generation = table.generation();
    table.refresh(&plan, |_| new = 0);
    assert_ne!(new, 0, "nothing is new the second time");
    assert_eq!(table.generation(), generation);
}
