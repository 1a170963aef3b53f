import pytest

pytest.register_assert_rewrite(f"{__name__}.auditing", f"{__name__}.drivers", f"{__name__}.world")
