SRC = '''
import math
import numpy as np


class _Space:
    def __init__(self, n=None, shape=()):
        self.n, self.shape = n, shape


class CartPole:
    observation_space = _Space(shape=(4,))
    action_space = _Space(n=2)

    def __init__(self, render_mode=None):
        self.rng = np.random.RandomState(0)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.RandomState(seed)
        self.s = self.rng.uniform(-0.05, 0.05, 4)
        self.t = 0
        return self.s.astype(np.float32), {}

    def step(self, a):
        x, xd, th, thd = self.s
        f = 10.0 if a == 1 else -10.0
        c, s = math.cos(th), math.sin(th)
        tmp = (f + 0.05 * thd ** 2 * s) / 1.1
        tha = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        xa = tmp - 0.05 * tha * c / 1.1
        self.s = np.array([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha])
        self.t += 1
        term = bool(abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.2095)
        return self.s.astype(np.float32), 1.0, term, self.t >= 500, {}

    def render(self):
        pass

    def close(self):
        pass


class _Spec:
    reward_threshold = 475.0


def make(name, render_mode=None, **kw):
    env = CartPole(render_mode)
    env.spec = _Spec()
    return env
'''
open("gymnasium.py", "w").write(SRC)
