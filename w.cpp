#include "host/src/thread_pool.h"
#include <chrono>
#include <cstdio>
#include <vector>
#include <algorithm>
using namespace sparsesnn; using C=std::chrono::steady_clock;
static double us(C::time_point a, C::time_point b){return std::chrono::duration<double,std::micro>(b-a).count();}
static void busy(double u){auto t=C::now(); while(us(t,C::now())<u);}
int main(){ set_num_threads(2);
 for(double gap: {0.,10.,30.,60.,100.,300.,1000.}) for(double work:{5.,50.}) { std::vector<double> total, first, share; 
  for(int r=0;r<300;++r){ busy(gap); auto t=C::now(); double f=1e9; int mine=0; 
   parallel_for(16,[&](int,int w){ if(w==1){ double x=us(t,C::now()); if(x<f) f=x; } else ++mine; busy(work);});
   total.push_back(us(t,C::now())); first.push_back(f); share.push_back(mine);} 
  auto med=[](std::vector<double> v){std::sort(v.begin(),v.end()); return v[v.size()/2];};
  printf("gap %5.0f work 16 x %3.0f us: total %7.1f (ideal %5.0f) worker begins at %6.1f us, main did %.0f of 16\n",gap,work,med(total),8*work,med(first)>1e8?-1:med(first),med(share)); } }
