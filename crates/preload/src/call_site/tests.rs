use super::*;

#[test]
fn equal_stacks_share_a_site_until_forgotten() {
    let sites = CallSites::new();
    assert!(sites.reserve(sys::monotonic_ns(), 1 << 20));
    let frames = [1usize, 2, 3];
    let (first, _) = sites.define(&frames, 1).unwrap();
    let (again, offset) = sites.define(&frames, 1).unwrap();
    assert!(
        first.is_new && !again.is_new && first.number == again.number && again.frames == frames
    );
    // A made-up stack: the return addresses 2 and 3 lie 8 and 24 bytes above the caller.
    let mut stack = [1usize, 2, 77, 3, 0, 0];
    let caller = Caller {
        address: 1,
        at: stack.as_ptr() as usize,
    };
    let top = caller.at + size_of_val(&stack);
    let key = hash([1, top - caller.at].into_iter());
    sites.cache(caller, top - caller.at, key, 1, offset, &[0, 8, 24]);
    assert_eq!(sites.site(caller, top, false, 0), again);
    stack[3] = 4;
    core::hint::black_box(&stack);
    let other = sites.site(caller, top, false, 0);
    assert_ne!(
        other.number, again.number,
        "another outer caller is another site"
    );
    assert_eq!(other.frames, [1], "no unwinder: the return address alone");
    sites.forget();
    assert!(sites.define(&frames, 2).unwrap().0.is_new);
}

#[test]
fn a_spent_budget_leaves_stacks_out() {
    let sites = CallSites::new();
    assert!(sites.reserve(0, 1 << 20));
    sites.load_unwinder();
    sites.spent_ns.store(u64::MAX / 2, Ordering::Relaxed);
    let site = sites.site(Caller { address: 5, at: 8 }, 0, false, 1);
    assert!(site.no_stack && site.frames == [5] && sites.left_out.load(Ordering::Relaxed) == 1);
    sites.allow(u64::MAX);
    let allowed = sites.site(Caller { address: 5, at: 8 }, 0, false, 1);
    assert!(!allowed.no_stack);
    assert!(
        !sites
            .site(Caller { address: 5, at: 8 }, 0, true, 1)
            .no_stack
    );
}
