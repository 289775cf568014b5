package origin

import "time"

// share is what one workspace has had of the time of a gate's places, and what
// it waits for. Times are what has passed since the gate was made.
type share struct {
	settled time.Duration // where it came in, and what its queries took that have ended
	running int
	began   time.Duration // the sum of when those began that run
	waiting []*place      // the oldest first
}

// place is one that is waited for.
type place struct {
	asked   time.Duration
	decided chan struct{} // closed then:
	began   time.Duration // when it was given
	refused bool          // it was not
}

// had is all it has had, of queries that run as much as they took so far: what
// they will take in all nobody knows. It grows by as many seconds a second as
// there are of them, and does not change when one begins or ends.
func (s *share) had(now time.Duration) time.Duration {
	return s.settled + time.Duration(s.running)*now - s.began
}

func (s *share) begin(now time.Duration) {
	s.running++
	s.began += now
}

func (s *share) end(began, now time.Duration) {
	s.running--
	s.began -= began
	s.settled += now - began
}

// comeIn is for one that wants a place, and did not wait for any: what others
// had meanwhile it cannot claim afterwards.
func (s *share) comeIn(reads, now time.Duration) { s.settled += max(0, reads-s.had(now)) }

func (s *share) idle() bool { return s.running == 0 && len(s.waiting) == 0 }

// before says whether the next place is for s rather than for o; both wait.
func (s *share) before(o *share, now time.Duration) bool {
	if a, b := s.had(now), o.had(now); a != b {
		return a < b
	}
	return s.waiting[0].asked < o.waiting[0].asked
}

// clock reads how much they had who had least when a query last began: there a
// workspace comes in, ahead of those that run by no more than these took since.
// It never goes back.
type clock struct {
	reads time.Duration
	at    time.Duration // when it was read
}

// next is the clock when a query begins of a workspace that has had so much:
// nobody waits who has had less. However many come in meanwhile, it goes as fast
// as if all that may wait belonged to workspaces of their own: the turn of each
// that waits comes.
func (c clock) next(had, now time.Duration) clock {
	return clock{max(had, c.reads+(now-c.at)/(queueFactor+1)), now}
}
