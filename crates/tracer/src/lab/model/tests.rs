use super::*;

/// Page tables of one level, an entry of 8 bytes for each page, on the second node.
struct Tables;

const TABLE: u64 = 1 << 20;
/// From here on pages are huge.
const HUGE: u64 = 1 << 30;

impl Emulator for Tables {
    fn now_fs(&self) -> u64 {
        0
    }

    fn page_walk(&self, address: u64) -> PageWalk {
        let huge = address >= HUGE;
        let bits = if huge { HUGE_PAGE_BITS } else { PAGE_BITS };
        let mut walk = PageWalk {
            count: 1,
            huge,
            ..PageWalk::default()
        };
        walk.places[0] = TABLE + (address >> bits) * 8;
        walk
    }
}

fn model() -> Model {
    let setup = "nearpage tracer setup 1\npage_bytes 4096\nline_bytes 64\nl1_fetch 1024 2\nl1_data 1024 2\n\
         l2 4096 2\ntlb 8 8 0\ncpu_nodes 0 1\nthread_cpus 0\nquantum 1000\n";
    let lab = "nearpage lab setup 1\ninstruction_fs 10000\nquantum_ns 1000\npause_ns 40\nhit_fs 3 0\ntlb_miss_fs 20\n\
         latency_fs 100 300 300 100\ncontroller_fs 0\ndirectory_fs 0\nlink_fs\nroutes - - - -\n\
         memory_bytes 1048576 1048576\nbegin_marks 0\nwarm_up_instructions 0\nstop_booted 0\n";
    let lab = LabSetup::parse(lab).unwrap();
    Model::new(&Setup::parse(setup).unwrap(), &lab)
}

fn load(model: &mut Model, address: u64) -> u64 {
    let before = model.latest[0].remainder_fs;
    let access = Access {
        cpu: 0,
        address,
        place: address,
        instruction: 1,
        size_bytes: 8,
        kernel: false,
        repeats: true,
    };
    let counts = model.access(&access, false, &Tables);
    counts * model.instruction_fs + model.latest[0].remainder_fs - before
}

#[test]
fn a_tlb_miss_loads_the_pages_entry_through_the_caches() {
    let mut model = model();
    // The TLB's miss, the entry from the other node, the line from its own.
    assert_eq!(load(&mut model, 0), 20 + 300 + 100);
    assert_eq!(load(&mut model, 8), 0);
    assert_eq!(load(&mut model, 64), 100);
    // The next page's entry is in the line that the first walk loaded.
    assert_eq!(load(&mut model, 4096), 20 + 100);
    let count = |count: LabCount| model.counts[count as usize];
    assert_eq!(count(LabCount::WalkMisses), 1);
    assert_eq!(count(LabCount::PageWalkWaitFs), 300);
    assert_eq!(
        (count(LabCount::TlbMisses), count(LabCount::TlbMissTimeFs)),
        (2, 40)
    );
    assert_eq!((model.pairs[0].misses, model.pairs[1].misses), (3, 1));
}

#[test]
fn a_huge_page_is_one_entry() {
    let mut model = model();
    let misses = |model: &Model| model.counts[LabCount::TlbMisses as usize];
    for page in 0..512 {
        load(&mut model, HUGE + page * 4096);
    }
    assert_eq!(misses(&model), 1);
    load(&mut model, 0);
    load(&mut model, HUGE);
    assert_eq!(misses(&model), 2);
    // The TLB's eight entries are for pages of either size.
    for page in 0..7 {
        load(&mut model, page * 4096);
    }
    assert_eq!(misses(&model), 8);
    load(&mut model, HUGE);
    assert_eq!(misses(&model), 8);
    load(&mut model, 7 * 4096);
    load(&mut model, 0);
    assert_eq!(misses(&model), 10);
}
