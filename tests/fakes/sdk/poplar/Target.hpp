#include "../fake_sdk.hpp"
