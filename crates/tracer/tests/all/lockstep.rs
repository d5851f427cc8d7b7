//! Whose turn it is.

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
