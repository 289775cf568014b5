package limiter

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// activeAccounts are those that hold tokens or have a debt. While there are any,
// they are swept every sweepEvery; less often where that takes more than a fiftieth of the time.
type activeAccounts struct {
	l *Limiter

	mu       sync.Mutex // guards all below; taken after a bucket's
	accounts map[account]struct{}
	sweeping bool // a sweep runs, or a timer will begin one
}

const (
	sweepEvery = 100 * time.Millisecond
	maxSwept   = 64 // calls that a sweep requests at most, so that they do not delay requests
)

// add adds an account, if it has to be swept. Its mu is held.
func (a *activeAccounts) add(x account) {
	if x.base().active || !x.isActive() {
		return
	}
	x.base().active = true
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accounts[x] = struct{}{}
	if !a.sweeping {
		a.sweeping = true
		time.AfterFunc(sweepEvery, a.sweep)
	}
}

// each calls do for each account, with its mu held.
func (a *activeAccounts) each(do func(x account)) {
	a.mu.Lock()
	all := slices.Collect(maps.Keys(a.accounts))
	a.mu.Unlock()
	for _, x := range all {
		x.base().mu.Lock()
		do(x)
		x.base().mu.Unlock()
	}
}

// sweep gives back what is idle and sends debts. Then it removes the accounts that hold
// nothing and have no debt.
func (a *activeAccounts) sweep() {
	if a.l.closed.Load() {
		return
	}
	now, calls, began := a.l.now(), 0, time.Now()
	a.each(func(x account) {
		if x.sweep(now) && calls < maxSwept {
			requestCall(x)
			calls++
		}
		if x.base().active = x.isActive(); !x.base().active {
			a.mu.Lock()
			delete(a.accounts, x)
			a.mu.Unlock()
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sweeping = len(a.accounts) > 0; a.sweeping {
		time.AfterFunc(max(sweepEvery, 50*time.Since(began)), a.sweep)
	} else {
		a.accounts = make(map[account]struct{}) // the old one keeps its memory
	}
}
