package origin

import (
	"hash/maphash"
	"sync/atomic"
	"unsafe"

	"listedge/prefetch"
)

// nearKeys finds keys without a lock, and for one line of memory: where there
// are many keys, each line that finding one takes is a wait, and a map's are
// three or four. It may lack a key, which the map then has.
//
// A key lies where its text says, which is known before its hash is: what is
// known of it comes while it is hashed.
//
// Invariant: it has no key that its shard has not. For it is written under the
// lock of the key's shard, if only under that for reading: who forgets a key
// either finds it here, or nobody puts it here afterwards. What two who put keys
// of one line at once make of it may be a tag that leads to another key, which
// is told by its hash, or one key twice.
type nearKeys[T any] struct{ lines []nearLine[T] }

type nearLine[T any] struct {
	keys [nearWays]atomic.Pointer[KnownKey[T]]
	tags [nearWays]atomic.Uint32 // of their places
	_    [64 - nearWays*(8+4)]byte
}

// KeyPlace says where a keyring looks for a key first. It tells nothing of the
// key, and other keys may have the same.
type KeyPlace uint64

// line returns the line where a key of the place is, if it is anywhere, and its
// tag.
func (n *nearKeys[T]) line(p KeyPlace) (line *nearLine[T], tag uint32) {
	return &n.lines[uint64(p)&uint64(len(n.lines)-1)], uint32(p >> 32)
}

const (
	nearWays  = 5  // keys that fill a line of memory
	nearLines = 64 // at first
	nearFull  = 2  // keys for each line: with so many, one of sixty has no room
)

func newNearKeys[T any](lines int) *nearKeys[T] { return &nearKeys[T]{make([]nearLine[T], lines)} }

// at returns the key, or nil.
func (n *nearKeys[T]) at(p KeyPlace, hash KeyHash) *KnownKey[T] {
	line, tag := n.line(p)
	for i := range line.tags {
		if line.tags[i].Load() != tag {
			continue
		}
		if k := line.keys[i].Load(); k != nil && k.hash == hash {
			return k
		}
	}
	return nil
}

// put has the key found here, in place of another if its line is full. The
// key's shard is locked.
func (n *nearKeys[T]) put(k *KnownKey[T]) {
	line, tag := n.line(KeyPlace(k.place.Load()))
	way := int(tag % nearWays)
	for i := range line.keys {
		if line.keys[i].Load() == nil {
			way = i
			break
		}
	}
	line.tags[way].Store(tag)
	line.keys[way].Store(k)
}

// drop has it found here no more. Its shard is locked for writing.
func (n *nearKeys[T]) drop(k *KnownKey[T]) {
	line, _ := n.line(KeyPlace(k.place.Load()))
	for i := range line.keys {
		line.keys[i].CompareAndSwap(k, nil)
	}
}

// Place returns the place of a key.
func (r *Keyring[T]) Place(text []byte) KeyPlace { return KeyPlace(maphash.Bytes(r.seed, text)) }

// Prefetch has fetched what is known of the keys of a place: there is hardly
// ever more than one.
func (r *Keyring[T]) Prefetch(p KeyPlace) {
	line, tag := r.near.Load().line(p)
	for i := range line.tags {
		if line.tags[i].Load() == tag {
			k := line.keys[i].Load()
			prefetch.Memory(unsafe.Pointer(k), unsafe.Sizeof(*k))
		}
	}
}

// putNear has the key found without a lock from now on. Where there are too
// many keys for the lines there are, twice as many lines begin empty: each key
// comes in as it is asked for next. Its shard is locked.
func (r *Keyring[T]) putNear(k *KnownKey[T]) {
	near := r.near.Load()
	if lines := len(near.lines); r.size.Load() > int64(nearFull*lines) {
		r.near.CompareAndSwap(near, newNearKeys[T](2*lines)) // else somebody else has
		near = r.near.Load()
	}
	near.put(k)
}
