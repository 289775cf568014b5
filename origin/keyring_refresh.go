package origin

import (
	"context"
	"errors"
	"time"
)

// update asks for the keys in one query and remembers the answers.
func (r *Keyring[T]) update(hashes []KeyHash) error {
	ctx, cancel := context.WithTimeout(r.ctx, lookupDeadline)
	defer cancel()
	began := time.Now()
	r.queries.Add(1)
	found, err := r.lookup(ctx, hashes, r.told.run(r.clock.Now()))
	if err != nil {
		if errors.Is(err, ErrWrongServer) {
			r.wrongServer.Store(true)
		}
		return err
	}
	r.wrongServer.Store(false)
	for _, hash := range hashes {
		key, exists := found[hash]
		s := r.shard(hash)
		s.mu.Lock()
		switch k := s.at(hash); {
		case k != nil && k.checked.Load() > int64(r.clock.Of(began)): // something later has answered already
		case !exists:
			r.forget(s, k)
			r.unknown.Add(hash, began.Add(unknownFresh))
		case k != nil && k.Key == key:
			k.checked.Store(int64(r.clock.Of(began)))
		default:
			r.remember(s, hash, key, r.clock.Of(began))
			r.unknown.Remove(hash)
		}
		s.mu.Unlock()
	}
	return nil
}

// remember keeps what a look-up found that began at that moment. The shard is locked.
func (r *Keyring[T]) remember(s *keyShard[T], hash KeyHash, key Key, at time.Duration) {
	var before *T
	key.Run = r.told.one(key.Run)
	k := &KnownKey[T]{hash: hash, Key: key, lastUsed: at}
	k.checked.Store(int64(at))
	k.used.Store(true)
	was := s.known[hash.beginning()]
	if was != nil && was.hash != hash {
		r.forget(s, was)
		was = nil
	}
	if was != nil {
		r.told.index.swap(hash, &was.Key, &key)
		k.doubted.Store(was.doubted.Load())
		before = &was.Value
		r.supersede(was)
	} else {
		r.size.Add(1)
		r.told.index.swap(hash, nil, &key)
		k.doubted.Store(r.told.before(at)) // what was told while nobody could be found
	}
	r.attach(key, before, &k.Value)
	s.known[hash.beginning()] = k
}

// forget has the key looked up before anything relies on it again. The shard
// is locked.
func (r *Keyring[T]) forget(s *keyShard[T], k *KnownKey[T]) {
	if k != nil {
		r.supersede(k)
		r.size.Add(-1)
		r.told.index.swap(k.hash, &k.Key, nil)
		delete(s.known, k.hash.beginning())
	}
}

// refresh looks the keys in use up again before they grow old. Where changes
// are told they do not, and a shard now and then is enough.
func (r *Keyring[T]) refresh() {
	defer r.done.Done()
	tick := time.NewTicker(keyRefresh)
	defer tick.Stop()
	next := 0 // shard to be reviewed, and the turns before it
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		shards := r.shards[:]
		if now := r.clock.Now(); r.told.recently(now) {
			const each = keyReview / time.Duration(len(r.shards))
			if now < time.Duration(next)*each {
				continue
			}
			next = int(now/each) + 1
			shards = shards[next%len(shards):][:1]
		}
		inUse := r.sweep(shards)
		for len(inUse) > 0 {
			n := min(len(inUse), lookupBatch)
			if r.update(inUse[:n]) != nil {
				break // requests fall back on what is known, within grace
			}
			inUse = inUse[n:]
		}
	}
}

// sweep returns the keys of the shards that were used since their last sweep
// and forgets idle ones.
func (r *Keyring[T]) sweep(shards []keyShard[T]) (inUse []KeyHash) {
	now := r.clock.Now()
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		for _, k := range s.known {
			if k.used.Swap(false) {
				k.lastUsed = now
				inUse = append(inUse, k.hash)
			} else if now-k.lastUsed > keyIdle {
				r.forget(s, k)
			}
		}
		s.mu.Unlock()
	}
	return inUse
}
