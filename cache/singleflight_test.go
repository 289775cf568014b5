package cache

import (
	"errors"
	"testing"
	"testing/synctest"
)

// Of all who ask at once one looks; who asks later looks again.
func TestOneLooksForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		looked := 0
		release := make(chan struct{})
		look := func() (Result, error) {
			looked++
			<-release
			return Result{Entry: &Entry{Next: "found"}}, nil
		}
		found := make(chan Result)
		for range 5 {
			go func() {
				r, err := f.do("page", look)
				if err != nil {
					t.Error(err)
				}
				found <- r
			}()
		}
		synctest.Wait() // all of them wait
		if _, leads := f.board("another page"); !leads {
			t.Error("waits for another page's look-up")
		}
		close(release)
		for range 5 {
			if r := <-found; r.Entry == nil || r.Entry.Next != "found" {
				t.Errorf("%+v", r)
			}
		}
		if looked != 1 {
			t.Errorf("%d looked", looked)
		}
		if _, leads := f.board("page"); !leads {
			t.Error("what has landed is still waited for")
		}
	})
}

// A look-up that panics lands: nobody waits for it for ever.
func TestALookUpThatPanicsLands(t *testing.T) {
	c := open(t, Options{})
	for name, look := range map[string]func(){
		"whole": func() { _, _ = c.flights.do("page", func() (Result, error) { panic("on the way") }) },
		"near": func() {
			flight, _ := c.flights.board("page")
			c.lead(flight, func() (Result, bool) { panic("on the way") }, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var of *flight
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic is lost")
					}
				}()
				defer func() { of = c.flights.up["page"] }()
				look()
			}()
			if of != nil {
				t.Fatal("it has not landed")
			}
			if r, err := c.flights.do("page", func() (Result, error) { return Result{Collapsed: true}, nil }); err != nil || !r.Collapsed {
				t.Errorf("the next one: %+v, %v", r, err)
			}
		})
	}
	flight, _ := c.flights.board("page")
	c.flights.land(flight) // as a panic would have it
	if <-flight.landed; !errors.Is(flight.err, errPanic) {
		t.Errorf("who waited for a panic gets %v", flight.err)
	}
}
