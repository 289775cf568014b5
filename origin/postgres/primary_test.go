package postgres

import "testing"

func TestFollowedRefuses(t *testing.T) {
	followed := Timeline{"71", 3}
	for _, c := range []struct {
		name  string
		known Followed
		by    Server
		taken bool
	}{
		{"nothing is known", Followed{}, Server{StartedAt: "1"}, true},
		{"nothing is known, a standby", Followed{}, Server{StartedAt: "1", Standby: true}, false},
		{"the followed run", Followed{StartedAt: "1", Timeline: followed}, Server{StartedAt: "1"}, true},
		{"the followed run, in recovery", Followed{StartedAt: "1", Timeline: followed}, Server{StartedAt: "1", Standby: true}, false},
		{"another run", Followed{StartedAt: "1", Timeline: followed}, Server{StartedAt: "2"}, false},
		{"another run of a later timeline", Followed{StartedAt: "1", Timeline: followed}, Server{StartedAt: "2", timeline: Timeline{"71", 4}}, false},
		{"the followed database", Followed{StartedAt: "1", Timeline: followed, Database: "a"}, Server{StartedAt: "1", Database: "a"}, true},
		{"another database of the server", Followed{StartedAt: "1", Timeline: followed, Database: "a"}, Server{StartedAt: "1", Database: "b"}, false},
		{"nothing proven, another database", Followed{Database: "a"}, Server{StartedAt: "1", Database: "b"}, false},
		{"nothing proven, a restart", Followed{Timeline: followed}, Server{StartedAt: "2", timeline: Timeline{"71", 3}}, true},
		{"nothing proven, a later timeline", Followed{Timeline: followed}, Server{StartedAt: "2", timeline: Timeline{"71", 4}}, true},
		{"nothing proven, a timeline of two digits", Followed{Timeline: followed}, Server{StartedAt: "2", timeline: Timeline{"71", 10}}, true},
		{"nothing proven, an earlier timeline", Followed{Timeline: followed}, Server{StartedAt: "2", timeline: Timeline{"71", 2}}, false},
		{"nothing proven, another system", Followed{Timeline: followed}, Server{StartedAt: "2", timeline: Timeline{"72", 1}}, true},
		{"nothing proven, a standby", Followed{Timeline: followed}, Server{StartedAt: "2", timeline: Timeline{"71", 4}, Standby: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if why := c.known.refuses(c.by); (why == "") != c.taken {
				t.Errorf("%q", why)
			}
		})
	}
}
