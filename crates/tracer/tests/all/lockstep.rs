//! Whose turn it is, and for how long.

use nearpage_tracer::lockstep::Lockstep;

#[test]
fn whoever_had_the_earlier_threads_go_first_notices_one_that_comes_back() {
    let lockstep = Lockstep::new(100, 2);
    let [earlier, later] = [lockstep.add(0, 0), lockstep.add(1, 0)];
    lockstep.enter(earlier);
    lockstep.enter(later);
    // It sleeps: nobody has to be waited for.
    lockstep.block(earlier, 10);
    let alone = lockstep.joined();
    lockstep.after_earlier(later);
    assert_eq!(lockstep.joined(), alone);
    // A futex that had changed, say: the call returned at once.
    lockstep.unblock(earlier, None);
    assert_ne!(lockstep.joined(), alone);
}

#[test]
fn quanta_grow_while_threads_have_nothing_to_do_with_each_other() {
    let lockstep = Lockstep::new(100, 2);
    let first = lockstep.add(0, 0);
    let mut end = lockstep.enter(first).end;
    assert_eq!(end, 100);
    let mut next = |apart| {
        let began = end;
        end = lockstep.next(first, began, apart).end;
        end - began
    };
    // The thread itself came in the first.
    let grown: Vec<u64> = (0..18).map(|_| next(true)).collect();
    let expected: Vec<u64> = (1..=18).map(|length: u64| 100 * length.min(16)).collect();
    assert_eq!(grown, expected);
    assert_eq!([next(false), next(true)], [100, 200]);
    // Another comes, and goes.
    let other = lockstep.add(1, 0);
    lockstep.remove(other, 0);
    assert_eq!([next(true), next(true)], [100, 200]);
}

#[test]
fn a_thread_moved_to_a_busy_cpu_waits_for_its_turn() {
    let lockstep = Lockstep::new(100, 3);
    let [first, second] = [lockstep.add(0, 0), lockstep.add(1, 0)];
    lockstep.enter(first);
    std::thread::scope(|scope| {
        let moved = scope.spawn(|| {
            lockstep.enter(second);
            lockstep.move_to(second, 0, 30)
        });
        // It has its quantum; the other one has what is left when it is gone.
        lockstep.remove(first, 60);
        let turn = moved.join().expect("it goes on");
        assert_eq!((turn.time, turn.end), (60, 100));
    });
    // A CPU that nobody has.
    let turn = lockstep.move_to(second, 2, 70);
    assert_eq!((turn.time, turn.end), (70, 100));
}
