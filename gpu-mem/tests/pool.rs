//! No block is in two hands and none gets lost, whatever is done with a pool and on which threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use gpu_mem::{BlockPool, Blocks, Counts, HostSlab, Layout, LayoutError, Memory, NotLent, PoolError};
use proptest::prelude::*;

fn memory(len: usize) -> Memory {
    HostSlab::new(len).unwrap().into()
}

fn layout(base: u64, block_len: u64, block_stride: u64, num_blocks: u64) -> Layout {
    Layout::new(num_blocks, block_len).unwrap().with_stride(block_stride).unwrap().at(base).unwrap()
}

fn pool(blocks: u64) -> BlockPool<u8> {
    BlockPool::new([(memory(blocks as usize), layout(0, 1, 1, blocks))]).unwrap()
}

#[test]
fn every_region_has_every_block_where_its_layout_says() {
    let shared = memory(8 * 24 + 5);
    let pool = BlockPool::<u8>::new([
        (memory(8 * 16), layout(0, 16, 16, 8)),
        (shared.clone(), layout(5, 8, 24, 8)),
        (shared.clone(), layout(13, 16, 24, 8)),
    ])
    .unwrap();
    let block = |region: usize, id| {
        let block = pool.regions()[region].block(id).unwrap();
        (block.offset(), block.len())
    };
    assert_eq!([block(0, 7), block(1, 7), block(2, 7)], [(112, 16), (173, 8), (181, 16)]);
    let [addresses, offsets] = [pool.regions()[1].addresses(), pool.regions()[1].layout()];
    assert_eq!(addresses.block(3).unwrap().start, shared.descriptor().address() + offsets.block(3).unwrap().start);
    let none = PoolError::Block(LayoutError::Block { got: 8, num_blocks: 8 });
    assert_eq!(pool.regions()[0].block(8).unwrap_err(), none);
    // Writing every block of every region touches every byte once, the first five besides.
    for (number, region) in pool.regions().iter().enumerate() {
        for id in 0..8 {
            let block = region.block(id).unwrap();
            block.copy_in(0, &vec![number as u8 * 16 + id as u8 + 1; block.len()]).unwrap();
        }
    }
    let mut all = vec![0; shared.len()];
    shared.copy_out(0, &mut all).unwrap();
    let turns = (0..8).flat_map(|id| [vec![17 + id; 8], vec![33 + id; 16]].concat());
    assert_eq!(all, [0; 5].into_iter().chain(turns).collect::<Vec<u8>>());
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let refused = |regions: Vec<(Memory, Layout)>| BlockPool::<u8>::new(regions).unwrap_err();
    assert_eq!(refused(vec![]), PoolError::NoRegions);
    let good = layout(0, 10, 10, 4);
    let cause = LayoutError::TooSmall { needed: 41, got: 40 };
    let short = refused(vec![(memory(40), good), (memory(40), good.at(1).unwrap())]);
    assert_eq!(short, PoolError::Region { region: 1, cause });
    let other = refused(vec![(memory(40), good), (memory(40), layout(0, 10, 10, 3))]);
    assert_eq!(other, PoolError::Counts { region: 1, got: 3, expected: 4 });
    let shared = memory(100);
    for (one, two) in [
        (good, good),
        (layout(0, 10, 20, 4), layout(9, 10, 20, 4)),
        (layout(0, 10, 20, 4), layout(11, 10, 20, 4)),
        (layout(0, 10, 20, 4), layout(15, 1, 19, 4)),
    ] {
        let regions = vec![(memory(40), good), (shared.clone(), two), (shared.clone(), one)];
        assert_eq!(refused(regions), PoolError::Overlap { first: 1, second: 2 }, "{one:?} {two:?}");
    }
    let turns = [(shared.clone(), layout(10, 10, 20, 4)), (shared, layout(0, 10, 20, 4))];
    assert!(BlockPool::<u8>::new(turns).is_ok());
    let none = Layout::new(1 << 40, 1).unwrap();
    assert!(matches!(refused(vec![(memory(40), none)]), PoolError::Region { region: 0, .. }));
}

#[test]
fn all_or_none_is_given_and_what_was_given_back_comes_first() {
    let pool = pool(5);
    let first = pool.allocate(2).unwrap();
    let second = pool.allocate(2).unwrap();
    assert_eq!((first.ids(), second.ids()), (&[0, 1][..], &[2, 3][..]));
    assert_eq!(pool.allocate(2).unwrap_err(), PoolError::Exhausted { asked: 2, free: 1 });
    assert_eq!(pool.allocate(usize::MAX).unwrap_err(), PoolError::Exhausted { asked: usize::MAX, free: 1 });
    assert_eq!(pool.counts(), Counts { free: 1, allocated: 4, lent: 0 });
    drop(first);
    assert_eq!(pool.allocate(3).unwrap().ids(), [0, 1, 4]);
    assert_eq!(pool.allocate(0).unwrap().ids(), [0; 0]);
    drop(second);
    assert_eq!(pool.counts(), Counts { free: 5, allocated: 0, lent: 0 });
}

#[test]
fn blocks_that_cannot_be_lent_come_back() {
    let (one, other) = (pool(4), pool(4));
    one.lend(7, one.allocate(2).unwrap()).unwrap();
    let refused = one.lend(7, one.allocate(1).unwrap()).unwrap_err();
    assert!(matches!(&refused, NotLent::Duplicate(blocks) if blocks.ids() == [2]));
    assert_eq!(one.counts(), Counts { free: 1, allocated: 1, lent: 2 });
    drop(refused.into_blocks());
    let refused = one.lend(8, other.allocate(4).unwrap()).unwrap_err();
    assert!(matches!(&refused, NotLent::Foreign(blocks) if blocks.ids().len() == 4));
    assert_eq!((other.counts().allocated, one.counts().lent), (4, 2));
    assert!(one.end(&8).is_none());
    assert_eq!(one.end(&7).unwrap().ids(), [0, 1]);
    assert!(one.end(&7).is_none());
    assert_eq!(one.counts(), Counts { free: 4, allocated: 0, lent: 0 });
}

#[test]
fn blocks_keep_the_memory_when_the_pool_is_gone() {
    let memory = memory(100);
    let pool = BlockPool::<u8>::new([(memory.clone(), layout(0, 10, 10, 10))]).unwrap();
    let held = pool.allocate(1).unwrap();
    pool.lend(1, pool.allocate(3).unwrap()).unwrap();
    drop(pool);
    let memory = memory.try_into_slab().unwrap_err();
    thread::spawn(move || drop(held)).join().unwrap();
    assert!(memory.try_into_slab().is_ok());
}

#[test]
fn threads_that_share_a_pool_never_hold_one_block() {
    let (pool, blocks) = (pool(40), 40);
    let held = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for key in 0..4 {
            let (pool, held) = (&pool, &held);
            scope.spawn(move || {
                for round in 0..2000 {
                    let Ok(blocks) = pool.allocate(round % 17) else { continue };
                    for id in blocks.ids() {
                        assert!(held.lock().unwrap().insert(*id), "block {id} is in two hands");
                    }
                    assert_eq!(pool.counts().total(), 40);
                    pool.lend(key, blocks).unwrap();
                    let blocks = pool.end(&key).unwrap();
                    for id in blocks.ids() {
                        assert!(held.lock().unwrap().remove(id));
                    }
                }
            });
        }
    });
    assert_eq!(pool.counts(), Counts { free: blocks, allocated: 0, lent: 0 });
}

/// What is done next. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Drop(usize),
    DropElsewhere(usize),
    Lend { key: u8, which: usize },
    End(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..9usize).prop_map(Step::Allocate),
        1 => any::<usize>().prop_map(Step::Drop),
        1 => any::<usize>().prop_map(Step::DropElsewhere),
        2 => (0..6u8, any::<usize>()).prop_map(|(key, which)| Step::Lend { key, which }),
        2 => (0..6u8).prop_map(Step::End),
    ]
}

/// The same as sets of ids.
#[derive(Default)]
struct Model {
    free: BTreeSet<u64>,
    lent: BTreeMap<u8, Vec<u64>>,
}

/// Another thread, which drops what it is given and says so.
struct Elsewhere {
    blocks: mpsc::Sender<Blocks>,
    dropped: mpsc::Receiver<()>,
}

impl Elsewhere {
    fn new() -> Self {
        let (blocks, given) = mpsc::channel();
        let (done, dropped) = mpsc::channel();
        thread::spawn(move || {
            for blocks in given {
                drop::<Blocks>(blocks);
                done.send(()).unwrap();
            }
        });
        Self { blocks, dropped }
    }

    fn drop(&self, blocks: Blocks) {
        self.blocks.send(blocks).unwrap();
        self.dropped.recv().unwrap();
    }
}

proptest! {
    #[test]
    fn every_block_is_in_one_place_at_every_moment(total in 1..30u64, steps in prop::collection::vec(step(), 0..120)) {
        let (pool, elsewhere) = (Arc::new(pool(total)), Elsewhere::new());
        let (mut model, mut hands) = (Model { free: (0..total).collect(), ..Model::default() }, Vec::<Blocks>::new());
        let take = |hands: &mut Vec<Blocks>, which: usize| match hands.len() {
            0 => None,
            len => Some(hands.swap_remove(which % len)),
        };
        for step in steps {
            match step {
                Step::Allocate(count) => match pool.allocate(count) {
                    Ok(blocks) => {
                        prop_assert_eq!(blocks.ids().len(), count);
                        for id in blocks.ids() {
                            prop_assert!(model.free.remove(id), "{} was not free", id);
                        }
                        hands.push(blocks);
                    }
                    Err(error) => {
                        prop_assert!(count > model.free.len());
                        prop_assert_eq!(error, PoolError::Exhausted { asked: count, free: model.free.len() });
                    }
                },
                Step::Drop(which) | Step::DropElsewhere(which) => {
                    if let Some(blocks) = take(&mut hands, which) {
                        model.free.extend(blocks.ids());
                        if matches!(step, Step::Drop(_)) { drop(blocks) } else { elsewhere.drop(blocks) }
                    }
                }
                Step::Lend { key, which } => {
                    if let Some(blocks) = take(&mut hands, which) {
                        let ids = blocks.ids().to_vec();
                        match pool.lend(key, blocks) {
                            Ok(()) => prop_assert!(model.lent.insert(key, ids).is_none()),
                            Err(refused) => {
                                prop_assert!(model.lent.contains_key(&key) && matches!(refused, NotLent::Duplicate(_)));
                                let blocks = refused.into_blocks();
                                prop_assert_eq!(blocks.ids(), ids);
                                hands.push(blocks);
                            }
                        }
                    }
                }
                Step::End(key) => match (pool.end(&key), model.lent.remove(&key)) {
                    (Some(blocks), Some(ids)) => {
                        prop_assert_eq!(blocks.ids(), ids);
                        hands.push(blocks);
                    }
                    (got, expected) => prop_assert!(got.is_none() && expected.is_none()),
                },
            }
            let allocated: Vec<u64> = hands.iter().flat_map(|blocks| blocks.ids().to_vec()).collect();
            let lent: Vec<u64> = model.lent.values().flatten().copied().collect();
            let counts = Counts { free: model.free.len(), allocated: allocated.len(), lent: lent.len() };
            prop_assert_eq!(pool.counts(), counts);
            let all: Vec<u64> = model.free.iter().copied().chain(allocated).chain(lent).collect();
            prop_assert_eq!(all.len() as u64, total);
            prop_assert_eq!(all.into_iter().collect::<BTreeSet<u64>>(), (0..total).collect::<BTreeSet<u64>>());
        }
        let lent = model.lent.values().map(Vec::len).sum();
        drop(hands);
        prop_assert_eq!(pool.counts(), Counts { free: total as usize - lent, allocated: 0, lent });
        // The pool's own free blocks are the model's.
        let mut rest = pool.allocate(total as usize - lent).unwrap().ids().to_vec();
        rest.sort_unstable();
        let expected: Vec<u64> = (0..total).filter(|id| !model.lent.values().flatten().any(|lent| lent == id)).collect();
        prop_assert_eq!(rest, expected);
    }
}

#[test]
fn blocks_grow_by_others_of_their_pool_alone() {
    let (pool, other) = (pool(8), pool(8));
    let mut blocks = pool.allocate(2).unwrap();
    blocks.append(pool.allocate(3).unwrap()).unwrap();
    assert_eq!(blocks.ids(), [0, 1, 2, 3, 4]);
    assert_eq!(pool.counts(), Counts { free: 3, allocated: 5, lent: 0 });
    let Err(NotLent::Foreign(theirs)) = blocks.append(other.allocate(1).unwrap()) else { panic!("another pool's") };
    assert_eq!(theirs.ids(), [0]);
    assert_eq!(other.counts().allocated, 1);
    pool.lend(1, blocks).unwrap();
    assert_eq!(pool.counts(), Counts { free: 3, allocated: 0, lent: 5 });
    drop(pool.end(&1));
    assert_eq!(pool.counts(), Counts { free: 8, allocated: 0, lent: 0 });
}
