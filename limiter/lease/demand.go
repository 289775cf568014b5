package lease

import "math"

const (
	prefetchAhead = 2_000   // how soon a lease is empty when the next is fetched (microseconds)
	idleLeast     = 100_000 // an idle lease is given back after this at the earliest,
	idleMost      = Epoch   // and a sparse key's not before this
)

// demand is how many requests a lease expects: as many as in the last Epoch.
type demand struct {
	at     int64   // of the last note
	recent float32 // requests in one Epoch
}

// note counts n requests since the last note, in a window that slides.
func (d *demand) note(n float32, now int64) {
	dt := max(0, now-d.at)
	d.at = max(d.at, now)
	if dt >= Epoch {
		d.recent = n * Epoch / float32(dt)
		return
	}
	d.recent = n + d.recent*(1-float32(dt)/Epoch)
}

// ahead is how many requests a lease is taken for: those of the next second, or a
// few where a key is sparse.
func (d *demand) ahead() int64 {
	if d.recent < 2 {
		return 0 // it may not come again
	}
	return int64(math.Ceil(max(float64(d.recent)/8, math.Sqrt(float64(d.recent)))))
}

// lowWater is what is spent while the next lease is fetched.
func (d *demand) lowWater(roundTrip int64) int64 {
	return int64(math.Ceil(float64(d.recent) * float64(prefetchAhead+roundTrip) / Epoch))
}

// idleAfter is how long a lease may lie unused: a few times what usually passes
// between two requests.
func (d *demand) idleAfter() int64 {
	return int64(max(idleLeast, min(idleMost, 4*Epoch/max(1, d.recent))))
}
